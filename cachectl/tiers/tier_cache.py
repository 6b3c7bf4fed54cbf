"""A tier cache: one tier of one instance, or a tier that instances share, with its budget."""

from __future__ import annotations

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.pending_moves import MoveBatch
from protocol.kv import Pages
from protocol.tiers import Tier

PINNED_SHARE = 0.5
"""The share of a cache's capacity that pins may take."""


class TierCache(NodeCache):
    """A budget of ``capacity`` tokens, the copies in it, and the order in which they leave.

    ``slower`` receives what is evicted. Only leaves are evicted: copies without a child's copy in the same cache, and
    neither locked nor pinned. No instance evicts what another one is still writing, because that room is not free until
    the write has ended. ``allocator`` hands out host memory's numbered pages, as many as the budget holds.
    """

    def __init__(
        self,
        tier: Tier,
        capacity: int,
        policy: ReplacementPolicy,
        instance: str | None = None,
        location: str = "",
        slower: TierCache | None = None,
        allocator: PageAllocator | None = None,
    ) -> None:
        super().__init__(tier, capacity, instance, location)
        self.slower = slower
        self.allocator = allocator
        self.used = 0
        self.copies = 0
        self._policy = policy
        self._order = policy.order(final=not _receives(slower))

    def reaches(self, cache: NodeCache) -> bool:
        """Whether a cache is this one, or a slower one that what is evicted here goes to."""
        reached: TierCache | None = self
        while reached is not None:
            if reached is cache:
                return True
            reached = reached.slower
        return False

    def pages_of(self, copy: Copy) -> Pages | None:
        """The numbered pages of a copy in host memory."""
        return self.allocator.pages(copy.page) if self.allocator is not None else None

    def may_pin(self, tokens: int) -> bool:
        """Whether ``tokens`` more may be pinned here."""
        return not tokens or self.pinned_tokens + tokens <= PINNED_SHARE * self.capacity

    def add(self, node: Node, held: bool, pages: Pages | None = None) -> Copy:
        """Add a copy of a node, or reserve room for it. The budget must have room.

        ``pages`` are given for a copy that has its pages already.
        """
        if pages is None and self.allocator is not None:
            pages = self.allocator.hand_out(node.room)
        copy = Copy(node, self, held, pages.numbers[0] if pages is not None else -1)
        node.add_copy(copy)
        above = node.parent.copy_in(self) if node.parent is not None else None
        if above is not None:
            # It is no leaf any more. A restored tree has few leaves among many copies, which evictions would look for.
            self._order.void(above)
        self._order.touch(copy)
        self.copies += 1
        self.used += node.room
        self.inserted_tokens += node.room
        if node.pins:
            self.pinned_tokens += node.room
        self.offer(copy)
        return copy

    def write(self, node: Node, batch: MoveBatch, held: bool = True) -> Copy:
        """Add a copy to a shared tier, or reserve room for it. A batch's instance writes it. The budget must have room.

        No other instance finds it before it is confirmed.
        """
        copy = self.add(node, held)
        copy.writer = batch.instance
        batch.writes.append(copy)
        return copy

    def remove(self, copy: Copy) -> Pages | None:
        """Remove a copy; its numbered pages, which are free now. Its parent's copy may become a leaf."""
        node = copy.node
        self._order.void(copy)
        siblings = node.remove_copy(copy)
        self.copies -= 1
        self.used -= node.room
        if node.pins:
            self.pinned_tokens -= node.room
        pages: Pages | None = None
        if self.allocator is not None:
            pages = self.allocator.pages(copy.page)
            self.allocator.give_back(pages)
            copy.page = -1
        above = node.parent.copy_in(self) if node.parent is not None and not siblings else None
        if above is not None:
            self.offer(above)
        return pages

    def touch(self, copy: Copy) -> None:
        """Update a copy's priority after an access to its node."""
        self._order.touch(copy)

    def reconsider(self, copy: Copy) -> None:
        """Update a copy whose priority may have fallen without an access."""
        self._order.reconsider(copy)

    def offer(self, copy: Copy) -> None:
        """Make a copy evictable, unless a lock, a pin or a child forbids it."""
        if not copy.ticket and not copy.children and self._evictable(copy):
            self._order.enter(copy)

    def withdraw(self, copy: Copy) -> None:
        """Make a copy unevictable. Its owner removes it."""
        self._order.void(copy)

    def gather(self, newcomer: Node, priority: float, batch: MoveBatch) -> list[Copy] | None:
        """The leaves to evict so that a batch's ``newcomer`` fits, children before parents; empty if there is room.

        None if it does not fit: too much is in use, or the policy values the victims more, or the batch is ahead of a
        turn and a waiting request needs one of them. The caller removes the victims before anything else touches the
        cache.
        """
        over = self.used + newcomer.room - self.capacity
        victims: list[Copy] = []
        # Children among the victims, by parent: a parent becomes a leaf when all its children go.
        going: dict[Node, int] = {}
        policy, order = self._policy, self._order
        while over > 0:
            lowest = self._lowest(going, batch.instance)
            if (
                lowest is None
                or not policy.admits(priority, lowest[1])
                or (batch.ahead and policy.lookahead.needs(lowest[0].node.key))
            ):
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
                above = parent.copy_in(self)
                if above is not None and not above.ticket and going[parent] == above.children:
                    order.enter(above)
        return victims

    def spare(self, count: int) -> list[Copy]:
        """About ``count`` leaves of lowest priority, the lowest first. They stay in the cache."""
        lowest = self._order.lowest_few(count)
        leaves = [copy for copy in lowest if not copy.children and self._evictable(copy)]
        leaves.sort(key=self._policy.current)
        return leaves[:count]

    def _lowest(self, going: dict[Node, int], instance: str) -> tuple[Copy, float] | None:
        """The leaf of lowest priority that an instance may evict, and that priority. It stays in the order."""
        while True:
            lowest = self._order.lowest()
            if lowest is None:
                return None
            copy = lowest[0]
            node, writer = copy.node, copy.writer
            written_by_another = bool(writer) and writer != instance
            if not written_by_another and self._evictable(copy) and copy.children == going.get(node, 0):
                return lowest
            # Locks, pins, writers and new children do not update the order. Lifting them offers the copy again.
            self._order.void(copy)

    def _evictable(self, copy: Copy) -> bool:
        node = copy.node
        return copy.held and not node.locks and not node.pins and not node.detached


def _receives(cache: TierCache | None) -> bool:
    """Whether a cache, or a slower one, has room for anything."""
    while cache is not None and not cache.capacity:
        cache = cache.slower
    return cache is not None
