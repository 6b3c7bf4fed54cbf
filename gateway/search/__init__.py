"""Searches: how the gateway asks the retriever, for a query or for their own sake."""
