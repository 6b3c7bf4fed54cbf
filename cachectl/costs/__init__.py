"""What a prefill and a load cost in seconds."""
