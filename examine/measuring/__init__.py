"""What examinations and benchmarks measure with: engines, tiers, answers, statistics."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""
