"""Whose turn it is, on which instance, and in which order."""
