"""`ragtree gate`: examines whether composed answers are as good as those of full prefills (docs/composition.md).

It asks the questions of `ragtree bench compose`. That is why it is here.
"""

MOST_QUESTIONS = 600
"""Of each kind, by default."""
