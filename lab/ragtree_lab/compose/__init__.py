"""Composed reuse against full prefill: how good its answers are, by method and share, and how much sooner they come."""
