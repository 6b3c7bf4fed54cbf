"""A simulator: the shipped scheduler and tree on a virtual clock."""
