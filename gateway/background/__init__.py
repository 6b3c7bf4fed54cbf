"""Background work: warm-up, deletion sweeps and pins."""
