"""Several retrievers as one: each keeps a shard of the documents, and what they find is merged."""
