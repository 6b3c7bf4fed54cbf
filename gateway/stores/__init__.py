"""What the gateway keeps from one request to the next."""
