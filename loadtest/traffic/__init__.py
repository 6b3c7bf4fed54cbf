"""The traffic: questions, documents and arrival times."""
