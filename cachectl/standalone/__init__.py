"""Caching decisions for a plain vLLM that has no controller."""
