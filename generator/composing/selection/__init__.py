"""Selectors: which tokens of composed documents are computed again. One selector a file, all behind ``Selector``."""
