"""Attention over facts of graphs, measured with real engines."""
