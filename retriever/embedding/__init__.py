"""Embedders: the interface, and one module per implementation."""
