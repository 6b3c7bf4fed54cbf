"""What the gateway counts itself, and what it asks the other parts for at a scrape."""
