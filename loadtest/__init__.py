"""Load tests of a running stack over its HTTP API: open-loop arrivals, streams read as clients read them, a report."""
