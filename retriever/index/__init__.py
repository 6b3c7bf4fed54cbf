"""Vector indexes: the interface, its implementations, and the catalog that keeps one for each collection."""
