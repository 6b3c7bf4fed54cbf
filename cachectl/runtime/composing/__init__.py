"""Composed reuse in the controller: which prompts may be composed, and what is computed ahead for them."""
