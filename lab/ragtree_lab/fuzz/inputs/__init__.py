"""What is sent: hypothesis strategies of requests, by what they attack."""
