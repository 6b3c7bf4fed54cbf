"""The tier manager: the tier caches of all instances, and the moves that wait for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.tiers.copy_removal import CopyRemoval
from cachectl.tiers.eviction import Eviction
from cachectl.tiers.pending_moves import PendingMoves, drop
from cachectl.tiers.support_rule import is_supported
from cachectl.tiers.tier_cache import TierCache
from protocol.errors import ConfigError, UnknownInstance
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cachectl.nodes.node import Copy, Node, NodeCache
    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tiers.page_allocator import PageAllocator
    from protocol.kv import Move, Pages


class Capacities(NamedTuple):
    """Budgets of the tiers in tokens. ``gpu`` is each instance's; 0 means that there is no such tier."""

    gpu: int
    host: int = 0
    disk: int = 0


class TierManager:
    """One GPU cache for each instance, and below them one host memory and one disk that instances share.

    An ``isolated`` instance runs on another machine and has its GPU only: it reaches no shared tier. ``retired``
    instances receive no new requests, and are removed when their last one ends.

    ``forget`` is called with each node that lost its last copy. ``find`` looks nodes up by key. ``arena`` hands out the
    pages of host memory. ``removal`` and ``eviction`` remove copies and make room.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        capacities: Capacities,
        forget: Callable[[Node], None],
        find: Callable[[bytes], Node | None],
        arena: PageAllocator | None = None,
    ) -> None:
        if min(capacities) < 0:
            raise ConfigError(f"the tiers' capacities must not be negative: {capacities}")
        if arena is not None and arena.capacity != capacities.host:
            raise ConfigError(f"host memory has pages for {arena.capacity} tokens, not for {capacities.host}")
        if not policy.keeps:
            capacities = Capacities(0)
        self._policy = policy
        self._find = find
        self._gpu_capacity = capacities.gpu
        self.disk = TierCache(Tier.DISK, capacities.disk, policy)
        self.host = TierCache(Tier.HOST, capacities.host, policy, slower=self.disk, allocator=arena)
        self.gpus: dict[str, TierCache] = {}
        self.retired: set[str] = set()
        self.pending_moves = PendingMoves(self._copy_at)
        self.removal = CopyRemoval(self.pending_moves, forget)
        self.eviction = Eviction(policy, self.removal, forget)

    def __iter__(self) -> Iterator[TierCache]:
        """Every cache, the instances' own first."""
        yield from self.gpus.values()
        yield self.host
        yield self.disk

    @property
    def capacity(self) -> int:
        """Tokens that all caches hold together."""
        return self.host.capacity + self.disk.capacity + len(self.gpus) * self._gpu_capacity

    def gpu(self, instance: str) -> TierCache:
        """An instance's own cache. Raises UnknownInstance."""
        cache = self.gpus.get(instance)
        if cache is None:
            raise UnknownInstance(f"there is no instance {instance!r}")
        return cache

    def cache(self, tier: Tier, instance: str | None) -> TierCache:
        """The cache of a tier; ``instance`` matters for the GPU only. Raises UnknownInstance."""
        if tier is Tier.GPU:
            return self.gpu(instance or "")
        return self.host if tier is Tier.HOST else self.disk

    def isolated(self, instance: str) -> bool:
        """Whether an instance reaches no shared tier. Raises UnknownInstance."""
        return self.gpu(instance).isolated

    def reaches(self, instance: str, tier: Tier) -> bool:
        """Whether an instance's report about a tier counts. A removed instance reached the shared tiers until now."""
        gpu = self.gpus.get(instance)
        return gpu is not None if tier is Tier.GPU else gpu is None or not gpu.isolated

    def fastest(self, node: Node, gpu: TierCache) -> Copy | None:
        """A node's fastest held copy that an instance with this GPU reaches."""
        cache: TierCache | None = gpu
        while cache is not None:
            copy = node.copies.get(cache)
            if copy is not None and copy.held:
                return copy
            cache = cache.slower
        return None

    def supports(self, copy: Copy) -> bool:
        """Whether a copy's parent supports it."""
        return is_supported(copy.node.parent, copy.cache, ())

    def insert(self, node: Node, cache: TierCache, pages: Pages | None) -> bool:
        """Register a copy that a tier holds already; False if it is unsupported, does not fit, or is to be dropped.

        ``pages`` are its pages in host memory, and must be free. Other tiers ignore them.
        """
        if cache.allocator is None:
            pages = None
        copy = node.copies.get(cache)
        if copy is not None:
            return copy.held and copy.pages == pages
        if (
            self.pending_moves.frees(node.key.hex(), cache.tier, cache.instance)
            or cache.used + node.room > cache.capacity
            or not is_supported(node.parent, cache, ())
        ):
            return False
        if cache.allocator is not None and (pages is None or not cache.allocator.take_over(pages, node.room)):
            return False
        cache.add(node, held=True, pages=pages)
        return True

    # Instances

    def add_instance(self, instance: str, isolated: bool = False) -> None:
        """Add an instance with an empty GPU cache. A known instance keeps its own."""
        if instance not in self.gpus:
            below = None if isolated else self.host
            self.gpus[instance] = TierCache(Tier.GPU, self._gpu_capacity, self._policy, instance, below)

    def remove_instance(self, instance: str) -> list[Copy]:
        """Remove an instance whose cache is empty; the copies that it was to make, which may not exist."""
        assert not self.gpu(instance).copies
        unmade = [self.pending_moves.target(move) for move in self.pending_moves.lose(instance)]
        del self.gpus[instance]
        self.retired.discard(instance)
        return [copy for copy in unmade if copy is not None]

    # Pending moves

    def add_drop(self, key: bytes, tokens: int, cache: NodeCache, pages: Pages | None) -> None:
        """Have KV dropped that a cache holds and the tree does not know, or no longer wants."""
        self.pending_moves.add(drop(key, tokens, cache, pages), cache.instance)

    def take_moves(self, instance: str) -> list[Move]:
        """Take all pending moves that an instance can carry out."""
        return self.pending_moves.take(instance, not self.isolated(instance)) if self.pending_moves else []

    def has_moves(self, instance: str) -> bool:
        """Whether any pending move is one that an instance can carry out."""
        return self.pending_moves.waits_for(instance, not self.isolated(instance))

    def return_moves(self, moves: Sequence[Move], instance: str, tick: float) -> None:
        """Put moves back that an instance took at request ``tick`` and may not have carried out."""
        if instance in self.gpus:
            # An isolated instance took its moves of shared tiers when it still reached them.
            reached = [move for move in moves if move.instance is not None] if self.isolated(instance) else moves
            self.pending_moves.give_back(reached, instance, tick)
            return
        for move in moves:
            if move.instance is None:
                self.pending_moves.add(move, None)

    def _copy_at(self, key: str, tier: Tier, instance: str | None) -> Copy | None:
        node = self._find(bytes.fromhex(key))
        return node.copies.get(self.cache(tier, instance)) if node is not None else None
