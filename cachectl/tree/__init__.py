"""The knowledge tree: which documents' KV is kept, after which documents, and in which tiers."""
