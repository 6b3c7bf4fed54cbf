"""Composed prompts against full prefills: how good their answers are, and how much sooner they come."""
