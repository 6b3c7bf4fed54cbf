"""Where the KV of documents lies outside an engine: host memory that a machine's instances share, and disk."""
