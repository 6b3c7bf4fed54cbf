"""Searches with a collection's graph against searches without one, and what the graph costs."""
