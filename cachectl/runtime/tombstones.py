"""What is left of deleted documents: their names, for as long as a query may still come that found them before."""

import math
from collections.abc import Callable, Iterable


class Tombstones:
    """When documents were deleted, by content and namespace, None for all; remembered for ``remembered_s``.

    A search that began before a deletion may bring its document to a prompt that comes after it, and the document may
    have been stored again since: so it is the search's time that tells. The clock is the one that all hosts share.
    """

    def __init__(self, wall_clock: Callable[[], float], remembered_s: float) -> None:
        self._wall_clock = wall_clock
        self._remembered_s = remembered_s
        self._deleted_at: dict[tuple[str, str | None], float] = {}

    def add(self, contents: Iterable[str], namespace: str | None) -> None:
        """Note that documents are deleted now."""
        now = self._wall_clock()
        while self._deleted_at:
            # In the order of their times, because each is put at the end anew.
            oldest = next(iter(self._deleted_at))
            if self._deleted_at[oldest] > now - self._remembered_s:
                break
            del self._deleted_at[oldest]
        for content in contents:
            self._deleted_at.pop((content, namespace), None)
            self._deleted_at[content, namespace] = now

    def deletions(self) -> list[tuple[str, str | None, float]]:
        """All that is remembered: content, namespace and time of each."""
        return [(content, namespace, at) for (content, namespace), at in self._deleted_at.items()]

    def recall(self, deletions: Iterable[tuple[str, str | None, float]]) -> None:
        """Remember deletions that another controller heard of; those that this one heard of are later."""
        for content, namespace, at in sorted(deletions, key=lambda deletion: deletion[2]):
            self._deleted_at.setdefault((content, namespace), at)

    def any(self, contents: Iterable[str], namespace: str, searched_at: float) -> bool:
        """Whether any of these documents was deleted since a search began, or in the same moment."""
        return any(
            self._deleted_at.get((content, cache), -math.inf) >= searched_at
            for content in contents
            for cache in (namespace, None)
        )
