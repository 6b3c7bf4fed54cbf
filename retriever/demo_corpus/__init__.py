"""The demo corpus: Python's standard library as documents."""
