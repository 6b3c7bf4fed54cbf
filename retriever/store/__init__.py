"""The store: documents, chunks, jobs, idempotency keys and orphans in one SQLite file."""
