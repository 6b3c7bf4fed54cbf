"""One stack on several machines: what the first one offers, and how others join it."""
