"""How long work tells how far it has come."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Hears (step, done, total)."""
