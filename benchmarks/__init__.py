"""Benchmarks of RAGTree, each with a baseline in the same run. Run them with ``ragtree bench``."""
