"""Documents of every media type, and what can be done to their bytes."""
