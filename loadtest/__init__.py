"""Load tests of a running stack over its HTTP API: open-loop arrivals, streamed answers, a report."""
