"""The connector's scheduler side: turns plans into jobs for the worker side, on the thread of vLLM's scheduler."""
