"""What is left of deleted documents: their names, for as long as a query may still come that found them before."""

from collections.abc import Callable, Iterable

# What passes between the gateway's saying how old a search is and the controller's hearing it, neither counts. A margin
# that is too large costs no more than computing anew what was stored again in that time.
_MARGIN_S = 3.0


class Tombstones:
    """When documents were deleted, by content and namespace, None for all; remembered for ``remembered_s``.

    A search that began before a deletion may bring its document to a prompt that comes after it, and the document may
    have been stored again since: so it is the search's time that tells.
    """

    def __init__(self, clock: Callable[[], float], remembered_s: float) -> None:
        self._clock = clock
        self._remembered_s = remembered_s
        self._deleted_at: dict[tuple[str, str | None], float] = {}

    def add(self, contents: Iterable[str], namespace: str | None) -> None:
        """Note that documents are deleted now."""
        now = self._clock()
        while self._deleted_at:
            # In the order of their times, because each is put at the end anew.
            oldest = next(iter(self._deleted_at))
            if self._deleted_at[oldest] > now - self._remembered_s:
                break
            del self._deleted_at[oldest]
        for content in contents:
            self._deleted_at.pop((content, namespace), None)
            self._deleted_at[content, namespace] = now

    def any(self, contents: Iterable[str], namespace: str, searched_s_ago: float) -> bool:
        """Whether any of these documents was deleted since a search that began so many seconds ago."""
        since = self._clock() - searched_s_ago - _MARGIN_S
        return any(
            self._deleted_at.get((content, place), since) > since for content in contents for place in (namespace, None)
        )
