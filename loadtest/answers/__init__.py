"""How one answer is requested, read and judged."""
