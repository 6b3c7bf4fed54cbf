"""The suite: runs the benchmarks one after another and writes one report."""
