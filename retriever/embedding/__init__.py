"""Embedders: the interface, and one module for each thing that can make vectors of texts."""
