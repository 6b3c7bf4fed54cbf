"""Caching decisions for a plain vLLM without a controller."""
