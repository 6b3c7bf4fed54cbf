"""The shapes of requests, replies, events and errors on the wire."""
