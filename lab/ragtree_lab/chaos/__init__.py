"""Chaos: kill processes of a stack under load and check how every request ends."""
