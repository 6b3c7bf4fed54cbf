"""The shipped scheduler and tree on a virtual clock."""
