"""Tier caches: where copies lie, how they are evicted and replicated, and the moves that engines carry out."""
