"""Keeps branches' KV for later prompts: a radix tree for each root entity (DepCache, section 4)."""

import threading
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch


class BranchKv(NamedTuple):
    """A branch's ``keys`` and ``values``, each [layers, tokens, heads, dim]; its first token had the ``position``."""

    keys: torch.Tensor
    values: torch.Tensor
    position: int

    @property
    def size(self) -> int:
        """The bytes of both."""
        return self.keys.nbytes + self.values.nbytes


class ComputedBranch(NamedTuple):
    """A branch by its ``key`` (`protocol.dependency.branch_keys`), and its parent's; None for a root.

    Chunks with the content hashes ``stated_by`` state it. Its ``kv`` is None if it was found and not computed.
    """

    key: bytes
    parent: bytes | None
    stated_by: tuple[str, ...]
    kv: BranchKv | None


class _Kept:
    """A branch that is kept. ``used`` is when it was last used."""

    __slots__ = ("below", "key", "kv", "namespace", "parent", "stated_by", "used")

    def __init__(self, namespace: str, key: bytes, parent: "_Kept | None", kv: BranchKv) -> None:
        self.namespace = namespace
        self.key = key
        self.parent = parent
        self.kv = kv
        self.used = 0
        self.stated_by: frozenset[str] = frozenset()
        self.below: set[_Kept] = set()


class BranchCache:
    """Branches' KV of at most ``size`` bytes, each behind its parent. May be used from several threads.

    Plans say what leaves (``drop``). If that does not make the room, the leaf whose last use is the longest ago leaves.
    ``deletions`` counts the calls of ``forget``.
    """

    def __init__(self, size: int) -> None:
        self.deletions = 0
        self._room = size
        self._uses = 0
        self._kept: dict[bytes, _Kept] = {}
        self._lock = threading.Lock()

    def find(self, keys: Sequence[bytes]) -> list[BranchKv | None]:
        """The KV of those branches that are kept."""
        with self._lock:
            self._uses += 1
            found = [self._kept.get(key) for key in keys]
            for kept in found:
                if kept is not None:
                    kept.used = self._uses
            return [kept.kv if kept is not None else None for kept in found]

    def add(self, namespace: str, branches: Sequence[ComputedBranch], deletions: int) -> None:
        """Keep a prompt's branches, in pre-order, as far as there is room. One whose parent is not kept is left out.

        Nothing is kept if there were more than so many ``deletions``: the facts may be among the deleted ones.
        """
        with self._lock:
            if deletions != self.deletions:
                return
            self._uses += 1
            for key, above, stated_by, kv in branches:
                kept = self._kept.get(key)
                parent = self._kept.get(above) if above is not None else None
                if kept is None and kv is not None and (above is None or parent is not None):
                    kept = self._kept[key] = _Kept(namespace, key, parent, kv)
                    if parent is not None:
                        parent.below.add(kept)
                    self._room -= kv.size
                if kept is not None:
                    kept.used = self._uses
                    kept.stated_by = kept.stated_by.union(stated_by)
            self._make_room()

    def drop(self, keys: Sequence[bytes]) -> None:
        """Drop branches, with what is kept below them. Those that are not kept are ignored."""
        with self._lock:
            for key in keys:
                kept = self._kept.get(key)
                if kept is not None:
                    self._remove(kept)

    def forget(self, is_deleted: Callable[[str, tuple[str, ...]], bool]) -> None:
        """Drop what only deleted chunks state, and what is below it.

        ``is_deleted`` says whether any of these content hashes is deleted in a namespace, or all of the namespace.
        """
        with self._lock:
            self.deletions += 1
            for key, kept in list(self._kept.items()):
                # It may have gone with the branch above it.
                if key not in self._kept or not is_deleted(kept.namespace, tuple(kept.stated_by)):
                    continue
                left = [content for content in kept.stated_by if not is_deleted(kept.namespace, (content,))]
                kept.stated_by = frozenset(left)
                if not left:
                    self._remove(kept)

    def _make_room(self) -> None:
        if self._room >= 0:
            return
        leaves = [(kept.used, key, kept) for key, kept in self._kept.items() if not kept.below]
        heapify(leaves)
        while self._room < 0 and leaves:
            _, _, leaf = heappop(leaves)
            self._remove(leaf)
            above = leaf.parent
            if above is not None and not above.below:
                heappush(leaves, (above.used, above.key, above))

    def _remove(self, top: _Kept) -> None:
        """Remove a branch and all below it."""
        if top.parent is not None:
            top.parent.below.discard(top)
        going = [top]
        while going:
            kept = going.pop()
            going += kept.below
            del self._kept[kept.key]
            self._room += kept.kv.size
