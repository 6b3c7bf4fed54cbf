"""Compiles the JSON schemas of callers in a confined process, before an engine sees them."""
