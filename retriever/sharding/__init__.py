"""Sharding: several retrievers as one. Each stores a share of the documents, and search results are merged."""
