"""Selectors: which tokens of composed documents are computed again. ``base`` has their contract."""
