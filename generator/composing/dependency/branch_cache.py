"""Keeps branches' KV for later prompts: a radix tree for each root entity (DepCache, section 4)."""

import threading
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch

from protocol.dependency import Branch, TreePositions

Tokens = tuple[int, ...]


class Front(NamedTuple):
    """What stands in front of trees: the tokens that their branches attend to, in a namespace.

    Branches at other kinds of ``positions`` have other KV: their ancestors are at other distances.
    """

    namespace: str
    token_ids: Tokens
    positions: TreePositions = TreePositions.DEPTH


class BranchKv(NamedTuple):
    """A branch's ``keys`` and ``values``, each [layers, tokens, heads, dim]; its first token had the ``position``."""

    keys: torch.Tensor
    values: torch.Tensor
    position: int

    @property
    def size(self) -> int:
        """The bytes of both."""
        return self.keys.nbytes + self.values.nbytes


class _Kept:
    """A branch that is kept. ``used`` is when it was last used."""

    __slots__ = ("children", "kv", "parent", "token_ids", "used")

    def __init__(self, parent: "_Kept | None", token_ids: Tokens, kv: BranchKv | None, used: int) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.kv = kv
        self.used = used
        self.children: dict[Tokens, _Kept] = {}


class BranchCache:
    """The most recently used branches' KV, of at most ``size`` bytes. May be used from several threads.

    A branch is found behind the same ancestors and the same front as it was computed behind. So leaves leave first.
    ``deletions`` counts the calls of ``forget``.
    """

    def __init__(self, size: int) -> None:
        self.deletions = 0
        self._room = size
        self._uses = 0
        # Below each front, the roots of its trees.
        self._fronts: dict[Front, _Kept] = {}
        self._lock = threading.Lock()

    def find(self, front: Front, branches: Sequence[Branch], token_ids: Sequence[Tokens]) -> list[BranchKv | None]:
        """The KV of those branches that are kept. A branch without its parent's KV has none."""
        with self._lock:
            self._uses += 1
            found: list[_Kept | None] = []
            top = self._fronts.get(front)
            for branch, tokens in zip(branches, token_ids, strict=True):
                above = top if branch.parent < 0 else found[branch.parent]
                kept = above.children.get(tokens) if above is not None else None
                if kept is not None:
                    kept.used = self._uses
                found.append(kept)
            return [kept.kv if kept is not None else None for kept in found]

    def add(
        self,
        front: Front,
        branches: Sequence[Branch],
        token_ids: Sequence[Tokens],
        computed: Sequence[BranchKv | None],
        deletions: int,
    ) -> None:
        """Keep what was ``computed``, behind what is kept already, as far as there is room.

        Nothing is kept if there were more than so many ``deletions``: the facts may be among the deleted ones.
        """
        with self._lock:
            if deletions != self.deletions:
                return
            self._uses += 1
            top = self._fronts.setdefault(front, _Kept(None, (), None, self._uses))
            placed: list[_Kept | None] = []
            for branch, tokens, kv in zip(branches, token_ids, computed, strict=True):
                above = top if branch.parent < 0 else placed[branch.parent]
                kept = above.children.get(tokens) if above is not None else None
                if kept is None and above is not None and kv is not None:
                    kept = above.children[tokens] = _Kept(above, tokens, kv, self._uses)
                    self._room -= kv.size
                if kept is not None:
                    kept.used = self._uses
                placed.append(kept)
            self._evict()

    def forget(self, is_deleted: Callable[[str], bool]) -> None:
        """Drop everything in the namespaces in which something is deleted: a branch does not name its documents."""
        with self._lock:
            self.deletions += 1
            for front in [front for front in self._fronts if is_deleted(front.namespace)]:
                self._room += sum(kept.kv.size for kept in _below(self._fronts.pop(front)) if kept.kv is not None)

    def _evict(self) -> None:
        """Make room: the leaf whose last use is the longest ago goes first."""
        if self._room >= 0:
            return
        every = [kept for top in self._fronts.values() for kept in _below(top)]
        leaves = [(kept.used, id(kept), kept) for kept in every if not kept.children]
        heapify(leaves)
        while self._room < 0 and leaves:
            _, _, leaf = heappop(leaves)
            above = leaf.parent
            if above is None:
                continue
            del above.children[leaf.token_ids]
            if leaf.kv is not None:
                self._room += leaf.kv.size
            if not above.children and above.parent is not None:
                heappush(leaves, (above.used, id(above), above))
        self._fronts = {front: top for front, top in self._fronts.items() if top.children}


def _below(top: _Kept) -> Iterator[_Kept]:
    """All branches below a front's."""
    waiting = list(top.children.values())
    while waiting:
        kept = waiting.pop()
        yield kept
        waiting += kept.children.values()
