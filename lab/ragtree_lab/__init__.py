"""RAGTree's laboratory: benchmarks with a baseline in the same run, research, chaos, soaks and fuzzing."""
