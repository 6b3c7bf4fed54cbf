"""The store: documents, chunks, embeddings, jobs and idempotency keys in one SQLite file, the truth of all else."""
