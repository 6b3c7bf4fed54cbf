"""Lexical search: BM25 over the words of chunks, on tantivy.

Each collection has an index of its own, so that a word's weight does not depend on other tenants' documents.
"""
