"""Counters of document outcomes since the start."""

import threading
from collections import Counter
from collections.abc import Iterable

from retriever.store.jobs import Outcome


class IngestCounts:
    """Counts documents by outcome. Thread-safe. Count only what is committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[Outcome]({"stored": 0, "unchanged": 0, "failed": 0})

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count one document per outcome."""
        with self._lock:
            self._counts.update(outcomes)

    def snapshot(self) -> dict[str, int]:
        """Return the current counts by outcome. Every outcome is always present."""
        with self._lock:
            return dict(self._counts.items())
