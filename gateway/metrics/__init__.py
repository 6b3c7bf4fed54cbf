"""The gateway's own metrics, and those it requests from the other parts at a scrape."""
