"""Which documents were deleted lately, so that a query which found them earlier does not bring them back."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from protocol.retrieval import Revisions, StoreRevision

_REMEMBERED = 10_000
"""Deletions of single contents."""

_BEFORE_US = math.inf
"""The place of a former controller's deletion: no store is known to have come after it."""


class _Tombstone(NamedTuple):
    """A deletion: the number that its store gave it, and its place among the deletions that came here."""

    number: int
    place: float


class Tombstones:
    """The last deletions, by content, namespace and store; a namespace of None means all.

    A search from before a deletion may still bring the document to a prompt. The document may also have been stored
    again since. So the revision of the store decides that the search saw. Of older deletions, only the highest number
    of each store is known: a search from before that counts as outdated in any case.

    A search that saw nothing of the store of a deletion cannot show that it came later. It counts as outdated, unless
    all stores that it did see were first heard of after the deletion: then they have taken the place of that store.
    """

    def __init__(self) -> None:
        # Oldest first: a repeated deletion moves to the end.
        self._deleted: dict[tuple[str, str | None, str], _Tombstone] = {}
        # Of each content and namespace, the stores that it was deleted from.
        self._stores: dict[tuple[str, str | None], set[str]] = {}
        self._forgotten: dict[str, _Tombstone] = {}
        self._count = 0
        # How many deletions had come when a store was first heard of.
        self._heard: dict[str, int] = {}

    def add(self, contents: Iterable[str], namespace: str | None, gone_at: StoreRevision) -> None:
        """Record that a store had none of these contents any more at a revision."""
        self._count += 1
        self._heard.setdefault(gone_at.store, self._count)
        for content in contents:
            self._put(content, namespace, gone_at, self._count)

    def deletions(self) -> list[tuple[str, str | None, StoreRevision]]:
        """Content, namespace and revision of every deletion that is remembered."""
        return [
            (content, namespace, StoreRevision(store, deleted.number))
            for (content, namespace, store), deleted in self._deleted.items()
        ]

    @property
    def forgotten(self) -> Revisions:
        """The highest revisions of the deletions that are not remembered any more."""
        return tuple(StoreRevision(store, deleted.number) for store, deleted in self._forgotten.items())

    def recall(
        self, deletions: Iterable[tuple[str, str | None, StoreRevision]], forgotten: Iterable[StoreRevision]
    ) -> None:
        """Add what a former controller remembered, before any deletion comes."""
        for gone_at in forgotten:
            self._forget(gone_at.store, _Tombstone(gone_at.number, _BEFORE_US))
        for content, namespace, gone_at in deletions:
            self._put(content, namespace, gone_at, _BEFORE_US)

    def any(self, contents: Iterable[str], namespace: str, found_at: Revisions) -> bool:
        """Whether any of these documents was deleted after a search that saw these revisions, or may have been."""
        for revision in found_at:
            self._heard.setdefault(revision.store, self._count)
        seen = {revision.store: revision.number for revision in found_at}
        wanted = set(contents)
        if not wanted:
            return False
        if any(self._is_later(store, deleted, seen) for store, deleted in self._forgotten.items()):
            return True
        return any(
            self._is_later(store, self._deleted[content, deleted_in, store], seen)
            for content in wanted
            for deleted_in in (namespace, None)
            for store in self._stores.get((content, deleted_in), ())
        )

    def _is_later(self, store: str, deleted: _Tombstone, seen: Mapping[str, int]) -> bool:
        if store in seen:
            return seen[store] < deleted.number
        return not seen or any(self._heard[other] < deleted.place for other in seen)

    def _put(self, content: str, namespace: str | None, gone_at: StoreRevision, place: float) -> None:
        known = self._deleted.pop((content, namespace, gone_at.store), None)
        # A sweep repeats deletions.
        number = gone_at.number if known is None else max(known.number, gone_at.number)
        self._deleted[content, namespace, gone_at.store] = _Tombstone(number, place)
        self._stores.setdefault((content, namespace), set()).add(gone_at.store)
        while len(self._deleted) > _REMEMBERED:
            (oldest, deleted_in, store), deleted = next(iter(self._deleted.items()))
            del self._deleted[oldest, deleted_in, store]
            self._stores[oldest, deleted_in].discard(store)
            if not self._stores[oldest, deleted_in]:
                del self._stores[oldest, deleted_in]
            self._forget(store, deleted)

    def _forget(self, store: str, deleted: _Tombstone) -> None:
        known = self._forgotten.get(store, deleted)
        self._forgotten[store] = _Tombstone(max(known.number, deleted.number), max(known.place, deleted.place))
