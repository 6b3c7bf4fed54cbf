"""The knowledge tree: which documents' KV is kept, behind which documents, and in which tiers."""
