"""A cache: one tier of one instance, or a tier that instances share, with its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.tiers import Tier

if TYPE_CHECKING:
    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tree.node import Node
    from cachectl.tree.page_allocator import PageAllocator
    from protocol.kv import Pages


PINNED_SHARE = 0.5
"""Of a cache's capacity, the share that pins may take: the rest stays for what is used."""


class Copy:
    """A node's KV in one cache: ``held`` once it is there, before that only room for it is reserved.

    ``pages`` are its own in a cache that has numbered ones, and None elsewhere.

    A ``condemned`` copy is not to be found any more, and goes with the last of the plans that may use it still: until
    then its room is taken. ``condemned`` is the number of the last request that may be one of them, and ``users`` how
    many of them have not ended. It is ``absent`` where the engine said that nothing of it is there.

    ``priority`` is what the policy made of the node at its last access, where it ranks by that. ``ticket`` and
    ``entered`` belong to the order of eviction: the copy's entry, 0 for none, and its priority when it was entered.
    """

    __slots__ = ("absent", "cache", "condemned", "entered", "held", "node", "pages", "priority", "ticket", "users")

    def __init__(self, node: Node, cache: TierCache, held: bool, pages: Pages | None = None) -> None:
        self.node = node
        self.cache = cache
        self.pages = pages
        self.priority = 0.0
        self.held = held
        self.absent = False
        self.condemned = 0
        self.users = 0
        self.ticket = 0
        self.entered = 0.0


class TierCache:
    """A budget of ``capacity`` tokens in a ``tier``, the copies in it, and the order in which leaves leave it.

    ``rank`` orders the tiers from 0, the fastest; ``slower`` is where evicted nodes are swapped to. ``clock`` is the
    greatest priority evicted so far (RAGCache, Algorithm 1): each cache ages by itself. Only leaves may go: copies
    without a child's copy in the same cache, neither locked nor pinned. ``instance`` is None for a shared cache.
    ``allocator`` hands out its pages, where they have numbers: as many as the budget has.
    """

    def __init__(
        self,
        tier: Tier,
        capacity: int,
        policy: ReplacementPolicy,
        instance: str | None = None,
        slower: TierCache | None = None,
        allocator: PageAllocator | None = None,
    ) -> None:
        self.tier = tier
        self.rank = tuple(Tier).index(tier)
        self.instance = instance
        self.capacity = capacity
        self.slower = slower
        self.allocator = allocator
        self.used = 0
        self.copies = 0
        self.clock = 0.0
        self.inserted_tokens = 0
        self.evictions = 0
        self.pinned_tokens = 0
        self._policy = policy
        self._order = policy.order(final=not _has_room_below(self))

    @property
    def isolated(self) -> bool:
        """Whether this is an instance's own cache, and all that it has."""
        return self.instance is not None and self.slower is None

    @property
    def turnovers(self) -> float:
        """How often the cache was filled anew: tokens ever inserted over its capacity."""
        return self.inserted_tokens / self.capacity if self.capacity else 0.0

    def may_pin(self, tokens: int) -> bool:
        """Whether so many tokens more may be pinned here."""
        return not tokens or self.pinned_tokens + tokens <= PINNED_SHARE * self.capacity

    def add(self, node: Node, held: bool, pages: Pages | None = None) -> Copy:
        """Put a copy of a node here, or reserve room for it; there must be room. ``pages`` it may have already."""
        if pages is None and self.allocator is not None:
            pages = self.allocator.hand_out(node.room)
        copy = Copy(node, self, held, pages)
        node.copies[self] = copy
        self._order.touch(copy)
        self.copies += 1
        self.used += node.room
        self.inserted_tokens += node.room
        if node.pins:
            self.pinned_tokens += node.room
        if node.parent is not None:
            node.parent.below[self] = node.parent.below.get(self, 0) + 1
        self.offer(copy)
        return copy

    def remove(self, copy: Copy) -> None:
        """Take a copy out; its parent may become a leaf."""
        node = copy.node
        self._order.void(copy)
        del node.copies[self]
        self.copies -= 1
        self.used -= node.room
        if node.pins:
            self.pinned_tokens -= node.room
        if self.allocator is not None and copy.pages is not None:
            self.allocator.give_back(copy.pages)
        parent = node.parent
        if parent is not None:
            siblings = parent.below[self] - 1
            if siblings:
                parent.below[self] = siblings
            else:
                del parent.below[self]
                above = parent.copies.get(self)
                if above is not None:
                    self.offer(above)

    def touch(self, copy: Copy) -> None:
        """Give a copy the priority that its node has now."""
        self._order.touch(copy)

    def reconsider(self, copy: Copy) -> None:
        """Hear that a copy's priority may have fallen without an access."""
        self._order.reconsider(copy)

    def offer(self, copy: Copy) -> None:
        """Let a copy be evicted if nothing speaks against it (any more)."""
        if not copy.ticket and self._evictable(copy) and self not in copy.node.below:
            self._order.enter(copy)

    def withdraw(self, copy: Copy) -> None:
        """Let a copy not be evicted: it goes another way."""
        self._order.void(copy)

    def gather(self, newcomer: Node, priority: float) -> list[Copy] | None:
        """The leaves to evict so that ``newcomer`` fits, children before parents; none if there is room.

        None when it does not fit: too much is in use, or the policy would rather keep what is there. Nothing is evicted
        yet; the caller removes the victims before anything else touches the cache.
        """
        over = self.used + newcomer.room - self.capacity
        victims: list[Copy] = []
        # Children among the victims, by parent: a parent whose children all go is a leaf.
        going: dict[Node, int] = {}
        policy, order = self._policy, self._order
        while over > 0:
            lowest = self._lowest(going)
            if lowest is None or not policy.admits(priority, lowest[1]):
                for spared in victims:
                    order.enter(spared)
                return None
            victim = lowest[0]
            victims.append(victim)
            node = victim.node
            order.void(victim)
            over -= node.room
            parent = node.parent
            if parent is not None and over > 0:
                going[parent] = going.get(parent, 0) + 1
                above = parent.copies.get(self)
                if above is not None and not above.ticket and going[parent] == parent.below[self]:
                    order.enter(above)
        return victims

    def spare(self, count: int) -> list[Copy]:
        """So many leaves, or about as many, that the cache can do without best, the lowest first; all of them stay."""
        leaves = [
            copy for copy in self._order.lowest_few(count) if self._evictable(copy) and self not in copy.node.below
        ]
        leaves.sort(key=self._policy.current)
        return leaves[:count]

    def _lowest(self, going: dict[Node, int]) -> tuple[Copy, float] | None:
        """The lowest leaf with its priority; it stays in its order."""
        while True:
            lowest = self._order.lowest()
            if lowest is None:
                return None
            copy = lowest[0]
            node = copy.node
            if self._evictable(copy) and node.below.get(self, 0) == going.get(node, 0):
                return lowest
            # Locks, pins and new children are not told to the order: whoever lifts them offers the copy again.
            self._order.void(copy)

    def _evictable(self, copy: Copy) -> bool:
        node = copy.node
        return copy.held and not node.locks and not node.pins and not node.detached

    def check_integrity(self) -> None:
        """Assert the budget, and that every copy that may be evicted stands in the order."""
        assert 0 <= self.used <= self.capacity
        self._order.check_integrity()


def _has_room_below(cache: TierCache) -> bool:
    """Whether a slower cache takes what leaves this one."""
    slower = cache.slower
    while slower is not None and not slower.capacity:
        slower = slower.slower
    return slower is not None
