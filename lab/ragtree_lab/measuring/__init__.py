"""The measured systems, and the tools to measure them."""
