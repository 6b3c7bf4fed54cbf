"""A long load below capacity, with the memory of every process recorded."""
