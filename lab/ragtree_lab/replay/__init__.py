"""Replay: compares the stack with plain vLLM under load, on prompts that arrive as in real traffic."""
