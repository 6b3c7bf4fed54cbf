"""Background work: warm-up, precomputation, deletion sweeps and pins."""
