"""A running stack: the process that runs it, and how other processes start, find and stop it."""
