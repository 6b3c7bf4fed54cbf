"""What is measured of RAGTree, each against a baseline in the same run. ``ragtree bench`` is its front door."""
