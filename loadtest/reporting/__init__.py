"""What a run leaves behind, and the report of it."""
