"""``ragtree eval``: scores a running stack on a user's own questions, over its HTTP API."""
