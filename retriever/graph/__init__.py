"""The knowledge graph of a collection: extraction, storage, and searches that follow relations."""
