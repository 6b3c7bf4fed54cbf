"""``ragtree bench graph``: searches with and without a graph, and what the graph costs."""
