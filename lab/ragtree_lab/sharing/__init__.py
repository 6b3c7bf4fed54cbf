"""Sharing KV between machines, against computing it, and against machines that keep theirs to themselves."""
