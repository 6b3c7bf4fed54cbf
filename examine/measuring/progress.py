"""Progress reports of long tasks."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""
