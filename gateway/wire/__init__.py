"""Wire formats of requests, replies, events and errors."""
