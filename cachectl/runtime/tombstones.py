"""Which documents were deleted lately, so that a query which found them earlier does not bring them back."""

import math
from collections.abc import Callable, Iterable


class Tombstones:
    """When documents were deleted, by content and namespace; a namespace of None means all of them.

    A search that began before a deletion may still bring the document to a prompt. The document may also have been
    stored again since. So the time of the search decides. Times are those of ``wall_clock``, in seconds since the
    epoch, which all hosts share. A deletion is remembered for ``remembered_s`` seconds.
    """

    def __init__(self, wall_clock: Callable[[], float], remembered_s: float) -> None:
        self._wall_clock = wall_clock
        self._remembered_s = remembered_s
        # Oldest first: a repeated deletion moves to the end.
        self._deleted_at: dict[tuple[str, str | None], float] = {}

    def add(self, contents: Iterable[str], namespace: str | None) -> None:
        """Record that documents are deleted now, and forget deletions that are too old to matter."""
        now = self._wall_clock()
        while self._deleted_at:
            oldest = next(iter(self._deleted_at))
            if self._deleted_at[oldest] > now - self._remembered_s:
                break
            del self._deleted_at[oldest]
        for content in contents:
            self._deleted_at.pop((content, namespace), None)
            self._deleted_at[content, namespace] = now

    def deletions(self) -> list[tuple[str, str | None, float]]:
        """Content, namespace and time of every deletion that is remembered."""
        return [(content, namespace, at) for (content, namespace), at in self._deleted_at.items()]

    def recall(self, deletions: Iterable[tuple[str, str | None, float]]) -> None:
        """Add the deletions of a former controller. Deletions that are recorded already are later, and stay."""
        for content, namespace, at in sorted(deletions, key=lambda deletion: deletion[2]):
            self._deleted_at.setdefault((content, namespace), at)

    def any(self, contents: Iterable[str], namespace: str, searched_at: float) -> bool:
        """Whether any of these documents was deleted at or after the moment a search began."""
        return any(
            self._deleted_at.get((content, deleted_in), -math.inf) >= searched_at
            for content in contents
            for deleted_in in (namespace, None)
        )
