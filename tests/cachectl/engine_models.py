"""Engines as the controller sees them: each carries out its moves in order, when the test lets it.

``Machine`` holds the shared tiers, either as sets of keys or as the real ones, which write files.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from generator.tiers.arena import HostArena
from generator.tiers.base import KvTier, TierError
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, LostCopy, Move, Pages, Paging
from protocol.plans import PlannedNode
from protocol.tiers import Tier

GPU, HOST, DISK = Tier
PAGE_BYTES = 64


class SharedTiers(Protocol):
    """Host memory and disk, as one instance reaches them."""

    def read(self, tier: Tier, key: str, pages: Pages | None) -> KvNode | None:
        """The node of a copy, or None if there is no such copy."""

    def write(self, tier: Tier, node: KvNode, pages: Pages | None) -> bool:
        """Write a copy, unless it is there. Returns whether it is there now."""

    def drop(self, tier: Tier, key: str, pages: Pages | None) -> None:
        """Delete a copy."""

    def files(self) -> set[str]:
        """The keys of the nodes on disk."""


class ModelledTiers:
    """Shared tiers as dictionaries: nodes on disk by key, and the stamp and node of each page of host memory."""

    def __init__(self) -> None:
        self.disk: dict[str, KvNode] = {}
        self.pages: dict[int, tuple[int, KvNode]] = {}

    def read(self, tier: Tier, key: str, pages: Pages | None) -> KvNode | None:
        if tier is DISK:
            return self.disk.get(key)
        there = {self.pages.get(number) for number in pages.numbers}
        for stamp, node in filter(None, there):
            if len(there) == 1 and (stamp, node.key) == (pages.stamp, key):
                return node
        return None

    def write(self, tier: Tier, node: KvNode, pages: Pages | None) -> bool:
        if tier is DISK:
            self.disk[node.key] = node
            return True
        if any(self.pages.get(number, (0, None))[0] > pages.stamp for number in pages.numbers):
            return False
        self.pages.update(dict.fromkeys(pages.numbers, (pages.stamp, node)))
        return True

    def drop(self, tier: Tier, key: str, pages: Pages | None) -> None:
        if tier is DISK:
            self.disk.pop(key, None)
        elif self.read(HOST, key, pages) is not None:
            for number in pages.numbers:
                del self.pages[number]

    def files(self) -> set[str]:
        return set(self.disk)


class RealTiers:
    """The tiers of one process: an arena and a folder that all instances open. Each node has bytes of its own."""

    def __init__(self, folder: Path, page_tokens: int, host_pages: int) -> None:
        self._page_tokens = page_tokens
        self._tiers: dict[Tier, KvTier] = {DISK: DiskTier(folder, "weights", Paging(page_tokens), PAGE_BYTES, 1 << 20)}
        if host_pages:
            self._tiers[HOST] = HostArena(folder / "arena", "weights", Paging(page_tokens), PAGE_BYTES, host_pages)

    def read(self, tier: Tier, key: str, pages: Pages | None) -> KvNode | None:
        with suppress(TierError), self._tiers[tier].reading(key, pages) as reader:
            for index in range(self._page_count(reader.node)):
                assert (reader.page(index) == _page(key, index)).all(), "a copy has other bytes than its node"
            return reader.node
        return None

    def write(self, tier: Tier, node: KvNode, pages: Pages | None) -> bool:
        with suppress(TierError), self._tiers[tier].writing(node, pages) as writer:
            for index in range(self._page_count(node)):
                writer.page(index)[:] = _page(node.key, index)
        return self._tiers[tier].has(node.key, pages)

    def drop(self, tier: Tier, key: str, pages: Pages | None) -> None:
        self._tiers[tier].drop(key, pages)

    def files(self) -> set[str]:
        return {stored.node.key for stored in self._tiers[DISK].nodes()}

    @property
    def highest_stamp(self) -> int:
        return self._tiers[HOST].highest_stamp

    def close(self) -> None:
        for tier in self._tiers.values():
            tier.close()

    def _page_count(self, node: KvNode) -> int:
        return Paging(self._page_tokens).page_count(node.prefix_tokens, node.tokens)


def _page(key: str, index: int) -> np.ndarray:
    return np.frombuffer(blake2b(f"{key}/{index}".encode(), digest_size=PAGE_BYTES).digest(), np.uint8)


class Job(NamedTuple):
    """A move that an engine has begun, of the plan or delivery ``name``. ``node`` is set if its GPU held the node."""

    name: str
    move: Move
    node: KvNode | None


class EngineModel:
    """An engine that holds nodes in its GPU at once, and carries out moves one after the other in ``work``."""

    def __init__(self, tiers: SharedTiers) -> None:
        self._tiers = tiers
        self.gpu: dict[str, KvNode] = {}
        self.jobs: deque[Job] = deque()
        self._lost: list[LostCopy] = []
        self._unwritten: dict[str, list[LostCopy]] = {}

    def receive(self, name: str, moves: Iterable[Move]) -> None:
        """Begin the moves of a plan or a delivery."""
        self._unwritten[name] = []
        for move in moves:
            node = self.gpu.get(move.node) if move.source is GPU else None
            if move.source is not GPU or move.target is not None:
                self.jobs.append(Job(name, move, node))
            if move.source is GPU and move.evict:
                self.gpu.pop(move.node, None)

    def prefill(self, name: str, planned: Sequence[PlannedNode], nodes: Sequence[KvNode]) -> None:
        """Load and compute a plan's nodes, and begin to save them. ``take_lost`` has the copies that were missing."""
        for plan, node in zip(planned, nodes, strict=True):
            while any((job.move.node, job.move.target) == (node.key, plan.source) for job in self.jobs):
                self.work()
            if plan.source is not None and self.read(plan.source, node.key, plan.pages) is None:
                self._lost.append(LostCopy(node.key, plan.source))
            if plan.kept is GPU:
                self.gpu[node.key] = node
            elif plan.kept is not None and plan.source is None:
                move = Move(node.key, node.tokens, GPU, plan.kept, evict=False, pages=plan.pages)
                self.jobs.append(Job(name, move, node))

    def take_lost(self) -> list[LostCopy]:
        """The copies that were missing since the last call. They travel with any plan's first token."""
        lost, self._lost = self._lost, []
        return lost

    def work(self) -> None:
        """Carry out the next move, if there is one."""
        if not self.jobs:
            return
        name, move, node = self.jobs.popleft()
        if move.target is not None and self._tiers.read(move.target, move.node, move.pages) is None:
            if move.source is not GPU:
                node = self._tiers.read(move.source, move.node, move.pages)
            if node is None or not self._tiers.write(move.target, node, move.pages):
                self._unwritten[name].append(LostCopy(move.node, move.target))
                return
        if move.evict and move.source is not GPU:
            self._tiers.drop(move.source, move.node, move.pages)

    def work_all(self) -> None:
        """Carry out all moves."""
        while self.jobs:
            self.work()

    def unwritten(self, name: str) -> tuple[LostCopy, ...] | None:
        """The copies that a plan or delivery could not write; None while it has moves left, or if it was killed."""
        if name not in self._unwritten or any(job.name == name for job in self.jobs):
            return None
        return tuple(self._unwritten[name])

    def read(self, tier: Tier, key: str, pages: Pages | None) -> KvNode | None:
        return self.gpu.get(key) if tier is GPU else self._tiers.read(tier, key, pages)

    def kill(self) -> None:
        """End the engine's process: its GPU is empty, and what it had not carried out never happens."""
        self.gpu.clear()
        self.jobs.clear()
        self._lost.clear()
        self._unwritten.clear()
