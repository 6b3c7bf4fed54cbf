"""Chaos: processes of a stack are killed under load, and every request must still come to one right end."""
