"""How to ask a model: system prompts and ways to sample, by the answers that they get."""
