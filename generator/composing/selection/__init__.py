"""Selectors: which tokens of composed documents are computed again. One ``Selector`` a file."""
