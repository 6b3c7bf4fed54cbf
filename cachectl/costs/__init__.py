"""What prefills and loads cost, in seconds."""
