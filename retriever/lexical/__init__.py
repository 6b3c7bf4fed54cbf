"""Lexical search: BM25 over the words of chunks, on tantivy.

Each collection has its own index, so that a word's weight does not depend on other tenants' documents.
"""
