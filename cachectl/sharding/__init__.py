"""Several controllers that share one generator: each owns the sub-trees of some first documents."""
