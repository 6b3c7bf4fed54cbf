"""Loaders: one module per document format. `registry` maps media types to loaders."""
