"""Logs and traces of one process."""
