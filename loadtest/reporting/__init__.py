"""The records of a run, and the report about them."""
