"""The life of one query, from search to completion."""
