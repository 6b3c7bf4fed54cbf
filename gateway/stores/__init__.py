"""What the gateway stores between requests."""
