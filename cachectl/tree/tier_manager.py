"""Where copies lie and how they move between caches: what fits, who leaves for it, and what falls with what leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.tree.pending_moves import PendingMoves
from cachectl.tree.tier_cache import Copy, TierCache
from protocol.errors import ConfigError, UnknownInstance
from protocol.kv import Move
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tree.node import Node
    from cachectl.tree.page_allocator import PageAllocator
    from protocol.kv import Pages


REPLICATED_USES = 32
"""At every so many uses, a document at the top of the tree gets its copy in host memory, if it has none."""


class Capacities(NamedTuple):
    """Budgets of the tiers in tokens: the GPU's is that of each instance; 0 means that there is no such tier."""

    gpu: int
    host: int = 0
    disk: int = 0


class TierManager:
    """All caches: a GPU for each instance, and below them one host memory and one disk that instances share.

    An ``isolated`` instance runs on another machine and has its GPU only: it reaches no shared tier.
    ``retired`` are instances that are given nothing more, and go when what runs there has ended.

    ``forget`` is told of a node that has lost its last copy, and ``find`` knows nodes by their keys. ``arena`` are the
    host memory's pages, if they have numbers. What has to be carried out is written down as orders: into the list of
    the caller where an instance is about to get a plan, otherwise into an pending_moves (``take_moves``).
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
        self._forget = forget
        self._find = find
        self._gpu_capacity = capacities.gpu
        self.pending_moves = PendingMoves(self._copy_at)
        self.disk = TierCache(Tier.DISK, capacities.disk, policy)
        self.host = TierCache(Tier.HOST, capacities.host, policy, slower=self.disk, allocator=arena)
        self.gpus: dict[str, TierCache] = {}
        self.retired: set[str] = set()

    def __iter__(self) -> Iterator[TierCache]:
        """Every cache, the instances' own first."""
        yield from self.gpus.values()
        yield self.host
        yield self.disk

    @property
    def capacity(self) -> int:
        """Tokens that all caches can hold together."""
        return self.host.capacity + self.disk.capacity + len(self.gpus) * self._gpu_capacity

    def gpu(self, instance: str) -> TierCache:
        """An instance's own cache. Raises UnknownInstance."""
        cache = self.gpus.get(instance)
        if cache is None:
            raise UnknownInstance(f"there is no instance {instance!r}")
        return cache

    def cache(self, tier: Tier, instance: str | None) -> TierCache:
        """The cache of a tier as an instance sees it. Raises UnknownInstance."""
        if tier is Tier.GPU:
            return self.gpu(instance or "")
        return self.host if tier is Tier.HOST else self.disk

    def isolated(self, instance: str) -> bool:
        """Whether the shared tiers are out of an instance's reach. Raises UnknownInstance."""
        return self.gpu(instance).isolated

    def reaches(self, instance: str, tier: Tier) -> bool:
        """Whether an instance can say of a tier what is there; one that is gone could until now."""
        gpu = self.gpus.get(instance)
        return gpu is not None if tier is Tier.GPU else gpu is None or not gpu.isolated

    def add_instance(self, instance: str, isolated: bool = False) -> None:
        """Give an instance an empty GPU tier; one that is known keeps its own."""
        if instance not in self.gpus:
            below = None if isolated else self.host
            self.gpus[instance] = TierCache(Tier.GPU, self._gpu_capacity, self._policy, instance, below)

    def remove_instance(self, instance: str, tick: int) -> None:
        """Forget an instance whose cache was emptied; what was perhaps never copied from there is dropped."""
        assert not self.gpu(instance).copies
        for order in self.pending_moves.lose(instance):
            copy = self.pending_moves.target(order)
            if copy is not None:
                self.discard(copy, tick)
        del self.gpus[instance]
        self.retired.discard(instance)

    def fastest(self, node: Node, gpu: TierCache) -> Copy | None:
        """The fastest copy of a node that is there, for an instance of this GPU."""
        cache: TierCache | None = gpu
        while cache is not None:
            copy = node.copies.get(cache)
            if copy is not None and copy.held:
                return copy
            cache = cache.slower
        return None

    def supported(self, copy: Copy) -> bool:
        """Whether a copy stands on a copy of its parent that is there."""
        return _supported(copy.node.parent, copy.cache, ())

    def keep(self, node: Node, instance: str, cached: bool, moves: list[Move], reserved: list[Copy]) -> Tier | None:
        """Reserve room for a node in the fastest cache that takes it; the fastest tier that has it or will have it.

        What is ``cached`` in a slower tier already is offered a cache in the GPU alone. ``reserved`` lists the copies
        that the caller reserved for the nodes above, and receives the new one. None: no cache takes it.
        """
        gpu = self.gpu(instance)
        cache: TierCache | None = gpu
        while cache is not None:
            copy = node.copies.get(cache)
            if copy is not None and copy.held:
                # Held, but out of this instance's reach: what it computes has no room of its own.
                return cache.tier if cached else None
            if copy is None and not (cached and cache is not gpu) and self._room_for(node, cache, reserved, moves):
                reserved.append(cache.add(node, held=False))
                return cache.tier
            cache = cache.slower
        return None

    def replicate(self, node: Node, instance: str, moves: list[Move]) -> None:
        """Copy a node that is pinned, or used much at the top of the tree, from an instance's GPU to host memory.

        Ahead of its eviction, if there is room: when an instance is lost, it need not be computed anew (RAGCache,
        section 6).
        """
        if self.isolated(instance):
            return
        if node.pins or (node.accesses % REPLICATED_USES == 0 and _at_the_top(node)):
            self._copy_down(node, instance, self.host, moves)

    def write_through(self, nodes: Sequence[Node], instance: str) -> None:
        """Copy nodes from an instance's GPU to every slower tier that has room for them; the orders wait for it."""
        if self.isolated(instance):
            return
        moves: list[Move] = []
        for node in nodes:
            for cache in (self.host, self.disk):
                self._copy_down(node, instance, cache, moves)
        for move in moves:
            self.pending_moves.add(move, instance)

    def persist(self, nodes: Iterable[Node]) -> None:
        """Copy nodes, given parents first, to disk from wherever they are, if there is room; the orders wait for it."""
        for node in nodes:
            source = next((copy for copy in node.copies.values() if copy.held and self._reaches_disk(copy)), None)
            if source is None or self.disk in node.copies:
                continue
            moves: list[Move] = []
            if self._room_beneath(node, self.disk, moves):
                self.disk.add(node, held=True)
                cache = source.cache
                key = node.key.hex()
                moves.append(Move(key, node.tokens, cache.tier, Tier.DISK, cache.instance, False, source.pages))
            for move in moves:
                self.pending_moves.add(move, source.cache.instance)

    def _reaches_disk(self, copy: Copy) -> bool:
        instance = copy.cache.instance
        return instance is None or not (self.isolated(instance) or instance in self.retired)

    def _copy_down(self, node: Node, instance: str, cache: TierCache, moves: list[Move]) -> None:
        copy = node.copies.get(self.gpu(instance))
        if copy is not None and copy.held and cache not in node.copies and self._room_for(node, cache, (), moves):
            pages = cache.add(node, held=True).pages
            moves.append(Move(node.key.hex(), node.tokens, Tier.GPU, cache.tier, instance, evict=False, pages=pages))

    def discard(
        self, copy: Copy, tick: int, moves: list[Move] | None = None, unused: bool = False, gone: bool = False
    ) -> None:
        """Take a copy out with all that only it supports; orders go to ``moves``, or to the pending_moves.

        A copy that a plan uses is condemned: it cannot be found any more after request number ``tick``, and is taken
        out when the plans up to that one are settled. ``unused`` says that none uses this one, whatever locks its node,
        and ``gone`` that its KV is not there, so that nobody need drop it.
        """
        pending = [copy]
        emptied: list[Node] = []
        while pending:
            going = pending.pop()
            node = going.node
            free = not node.locks or (unused and going is copy)
            if node.copies.get(going.cache) is not going or (going.condemned and not free):
                continue
            if not free:
                going.cache.withdraw(going)
                going.condemned = tick
                going.users = node.locks
                going.held = False
                going.absent = gone and going is copy
            else:
                self._take_out(going, going.held and not (gone and going is copy), moves)
            pending += self._unsupported(node)
            if not node.copies:
                emptied.append(node)
        # Below first: what a node is forgotten with should be what plans still use.
        for node in reversed(emptied):
            self._forget(node)

    def bury(self, copy: Copy) -> None:
        """Take out a copy that was condemned, or whose node was deleted: no plan uses it any more."""
        # Unless somebody looked, only the plans know if its KV was ever there: an order to drop nothing does no harm.
        self._take_out(copy, not copy.absent, None)
        if not copy.node.copies:
            self._forget(copy.node)

    def _take_out(self, copy: Copy, there: bool, moves: list[Move] | None) -> None:
        pages = copy.pages
        copy.cache.remove(copy)
        if not there:
            return
        if moves is None:
            self.add_drop(copy.node.key, copy.node.tokens, copy.cache, pages)
        else:
            moves.append(_drop(copy.node.key, copy.node.tokens, copy.cache, pages))

    def insert(self, node: Node, cache: TierCache, pages: Pages | None) -> bool:
        """Take note of a copy that is there already; False where it may not lie, does not fit, or is to be dropped.

        ``pages`` are those that it has in host memory: they must be free. Elsewhere they mean nothing.
        """
        if cache.allocator is None:
            pages = None
        copy = node.copies.get(cache)
        if copy is not None:
            return copy.held and copy.pages == pages
        if (
            self.pending_moves.frees(node.key.hex(), cache.tier, cache.instance)
            or cache.used + node.room > cache.capacity
            or not _supported(node.parent, cache, [])
        ):
            return False
        if cache.allocator is not None and (pages is None or not cache.allocator.take_over(pages, node.room)):
            return False
        cache.add(node, held=True, pages=pages)
        return True

    # Orders that wait

    def add_drop(self, key: bytes, tokens: int, cache: TierCache, pages: Pages | None) -> None:
        """Order KV to be dropped that lies in a cache without the tree's knowledge, or has been taken out of it."""
        self.pending_moves.add(_drop(key, tokens, cache, pages), cache.instance)

    def take_moves(self, instance: str) -> list[Move]:
        """Empty the pending_moves of all that this instance can carry out."""
        return self.pending_moves.take(instance, not self.isolated(instance)) if self.pending_moves else []

    def moves_wait(self, instance: str) -> bool:
        """Whether the pending_moves has anything that this instance can carry out."""
        return self.pending_moves.waits_for(instance, not self.isolated(instance))

    def return_moves(self, moves: Sequence[Move], instance: str, tick: float) -> None:
        """Put moves back that a plan took and may not have carried out (``PendingMoves.give_back``)."""
        if instance in self.gpus:
            # What an isolated one took along on shared tiers was on those that it had before.
            reached = [move for move in moves if move.instance is not None] if self.isolated(instance) else moves
            self.pending_moves.give_back(reached, instance, tick)
            return
        for move in moves:
            if move.instance is None:
                self.pending_moves.add(move, None)

    def _copy_at(self, key: str, tier: Tier, instance: str | None) -> Copy | None:
        node = self._find(bytes.fromhex(key))
        return node.copies.get(self.cache(tier, instance)) if node is not None else None

    def _room_for(self, node: Node, cache: TierCache, reserved: Sequence[Copy], moves: list[Move]) -> bool:
        """Make room for a node in a cache that may hold it, evicting what is worth less."""
        if not cache.capacity or not _supported(node.parent, cache, reserved):
            return False
        if node.pins and not cache.may_pin(node.room):
            return False
        victims = cache.gather(node, self._policy.priority(node, cache))
        if victims is None:
            return False
        for victim in victims:
            self._evict(victim, moves)
        return True

    def _evict(self, copy: Copy, moves: list[Move]) -> None:
        """Evict a leaf: swapped to a slower cache unless that has it already, and gone if none takes it."""
        node, cache = copy.node, copy.cache
        cache.clock = max(cache.clock, copy.priority)
        cache.evictions += 1
        target = self._swap_out(node, cache.slower, moves)
        # Of two tiers one at most is host memory.
        pages = target.pages if target is not None and target.pages is not None else copy.pages
        cache.remove(copy)
        tier = target.cache.tier if target is not None else None
        moves.append(Move(node.key.hex(), node.tokens, cache.tier, tier, cache.instance, pages=pages))
        if node.below:
            for orphan in self._unsupported(node):
                self.discard(orphan, 0, moves)
        if not node.copies:
            self._forget(node)

    def _swap_out(self, node: Node, cache: TierCache | None, moves: list[Move]) -> Copy | None:
        """The new copy of a node in a slower cache; None if it has a slower copy, or no slower cache takes it."""
        while cache is not None and cache not in node.copies:
            if self._room_beneath(node, cache, moves):
                return cache.add(node, held=True)
            cache = cache.slower
        return None

    def _room_beneath(self, node: Node, cache: TierCache, moves: list[Move]) -> bool:
        """Make room for a node without evicting what it stands on."""
        parent = node.parent
        assert parent is not None
        parent.locks += 1
        made = self._room_for(node, cache, (), moves)
        parent.locks -= 1
        for copy in parent.copies.values():
            if not copy.ticket:
                copy.cache.offer(copy)
        return made

    def _unsupported(self, node: Node) -> list[Copy]:
        """The copies of a node's children that lie where, after a loss, the node supports nothing any more."""
        if not node.below or node.parent is None:
            return []
        orphans = []
        for cache in node.below:
            if any(_supports(copy, cache) and copy.held for copy in node.copies.values()):
                continue
            below = [child.copies[cache] for child in node.children.values() if cache in child.copies]
            supports = any(_supports(copy, cache) and not copy.condemned for copy in node.copies.values())
            orphans += [copy for copy in below if not copy.condemned and (copy.held or not supports)]
        return orphans


def _at_the_top(node: Node) -> bool:
    """Whether a node stands right behind the root, or behind what is pinned: the system prompt."""
    return node.parent is not None and (node.parent.parent is None or node.parent.pins > 0)


def _supports(copy: Copy, cache: TierCache) -> bool:
    """Whether a node's copy lets its children lie in a cache: it is there, or in a faster tier that reaches it."""
    return copy.cache is cache or (cache.instance is None and copy.cache.rank < cache.rank and not copy.cache.isolated)


def _supported(parent: Node | None, cache: TierCache, reserved: Sequence[Copy]) -> bool:
    if parent is None or parent.parent is None:
        return True
    there = parent.copies.get(cache)
    if there is not None and there.held:
        return True
    return any((copy.held or copy in reserved) and _supports(copy, cache) for copy in parent.copies.values())


def _drop(key: bytes, tokens: int, cache: TierCache, pages: Pages | None) -> Move:
    return Move(key.hex(), tokens, cache.tier, None, cache.instance, pages=pages)
