"""What became of documents since the retriever's start."""

import threading
from collections import Counter
from collections.abc import Iterable

from retriever.store.jobs import Outcome


class IngestCounts:
    """Documents by outcome; any thread may count and read. Only what is committed is to be counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[Outcome]({"stored": 0, "unchanged": 0, "failed": 0})

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Count documents, one an outcome."""
        with self._lock:
            self._counts.update(outcomes)

    def now(self) -> dict[str, int]:
        """The counts as they are, by outcome; each outcome is there from the start."""
        with self._lock:
            return dict(self._counts.items())
