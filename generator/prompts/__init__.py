"""How a prompt is laid out and tokenised."""
