"""``ragtree doctor``, ``eval`` and ``gate``: examine a stack, its machine and its model; and what they measure with."""
