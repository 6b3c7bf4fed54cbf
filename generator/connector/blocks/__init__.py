"""An engine's paged KV cache as pages of bytes, on a CPU and on a GPU."""
