"""The store, the truth of all else: documents, chunks, jobs, idempotency keys and orphans in one SQLite file."""
