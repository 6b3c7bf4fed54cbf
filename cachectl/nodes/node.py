"""Nodes of the knowledge tree, and their copies in the tiers.

Node ── one document after one sequence of documents
└── Copy ── its KV in one cache: the GPU of an instance, host memory, or disk
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple

from mypy_extensions import i32

from protocol.kv import BY_TOKEN, Pages, Paging
from protocol.tiers import Tier

_FEW = 16
"""Up to this number, a node's copies are searched one by one. An index of them would take more memory than they do."""


class PathDocument(NamedTuple):
    """A document on a path: its content hash, and its length in tokens."""

    content: str
    tokens: int


class Node:
    """One document in one path, with its copies, its locks and what replacement policies know of it.

    ``content`` is the document's content hash, ``tokens`` its length, and ``prefix_tokens`` the length of everything in
    front of it. ``room`` is what a copy takes up: whole pages, cut as ``paging`` says, of ``Paging.page_tokens`` each.

    ``locks`` counts the plans that use the node. ``pins`` counts its own pins and those of its descendants. A node with
    either is not evicted. ``history`` belongs to the policy. A ``detached`` node has left the tree, but a plan may
    still use it. ``same_document`` has all nodes of its document, this one among them; None if it has no other, or if
    no prompt is composed. A root has no document, no tokens and no copies, and supports children in every cache.

    There may be millions of nodes, most with few copies and at most one child: these take no dictionaries.
    """

    __slots__ = (
        "_below",
        "_children",
        "_copies",
        "accesses",
        "average_cost",
        "computations",
        "content",
        "detached",
        "frequency",
        "history",
        "key",
        "last_access",
        "locks",
        "parent",
        "pins",
        "prefix_tokens",
        "previous_accesses",
        "room",
        "same_document",
        "tokens",
        "window",
    )

    def __init__(self, key: bytes, content: str, tokens: int, parent: Node | None, paging: Paging = BY_TOKEN) -> None:
        self.key = key
        self.content = content
        self.tokens = tokens
        self.parent = parent
        self.prefix_tokens: int = 0 if parent is None else parent.prefix_tokens + parent.tokens
        self.room: int = tokens
        if paging is not BY_TOKEN:
            self.room = paging.page_count(self.prefix_tokens, tokens) * paging.page_tokens
        # One child, or several by content.
        self._children: Node | dict[str, Node] | None = None
        # One copy, a few, or many by cache; in the order in which they came.
        self._copies: Copy | tuple[Copy, ...] | dict[NodeCache, Copy] = ()
        # Copies of children by cache, for the caches where this node has none that counts them.
        self._below: dict[NodeCache, int] | None = None
        self.detached = False
        self.locks: i32 = 0
        self.pins: i32 = 0
        self.same_document: dict[Node, None] | None = None
        self.frequency = 0.0
        self.history: object = None
        self.accesses = 0
        self.previous_accesses = 0
        self.window = 0
        self.last_access = 0
        self.average_cost = 0.0
        self.computations = 0

    @property
    def children(self) -> Collection[Node]:
        """The nodes of the documents after this one, in the order in which they came."""
        children = self._children
        if isinstance(children, dict):
            return children.values()
        return (children,) if children is not None else ()

    def child_of(self, content: str) -> Node | None:
        """The node of a document after this one."""
        children = self._children
        if isinstance(children, dict):
            return children.get(content)
        return children if children is not None and children.content == content else None

    def child(self, content: str) -> Node | None:
        """The document after this one, if any cache holds its KV."""
        node = self.child_of(content)
        return node if node is not None and any(copy.held for copy in node.copies) else None

    def add_child(self, child: Node) -> None:
        """Add a node after this one. There is none of its document yet."""
        children = self._children
        if children is None:
            self._children = child
        elif isinstance(children, dict):
            children[child.content] = child
        else:
            self._children = {children.content: children, child.content: child}

    def remove_child(self, child: Node) -> None:
        """Remove a node after this one."""
        children = self._children
        if isinstance(children, dict):
            del children[child.content]
            if len(children) == 1:
                self._children = next(iter(children.values()))
        else:
            assert children is child, "a node is removed that is no child"
            self._children = None

    @property
    def copies(self) -> Collection[Copy]:
        """A copy for each cache that holds the node's KV or reserves room for it, in the order in which they came."""
        copies = self._copies
        if isinstance(copies, dict):
            return copies.values()
        return (copies,) if isinstance(copies, Copy) else copies

    def copy_in(self, cache: NodeCache) -> Copy | None:
        """The copy in a cache."""
        copies = self._copies
        if isinstance(copies, Copy):
            return copies if copies.cache is cache else None
        if isinstance(copies, dict):
            return copies.get(cache)
        for copy in copies:
            if copy.cache is cache:
                return copy
        return None

    def add_copy(self, copy: Copy) -> None:
        """Add a copy in a cache that has none. It and its parent count it."""
        cache, copies, below = copy.cache, self._copies, self._below
        if below is not None:
            copy.children = below.pop(cache, 0)
            self._below = below or None
        if isinstance(copies, dict):
            copies[cache] = copy
        elif isinstance(copies, Copy):
            self._copies = (copies, copy)
        elif len(copies) < _FEW:
            self._copies = (*copies, copy) if copies else copy
        else:
            self._copies = {each.cache: each for each in (*copies, copy)}
        if self.parent is not None:
            self.parent._count_below(cache, 1)

    def remove_copy(self, copy: Copy) -> int:
        """Remove a copy. How many of the node's siblings still have one in its cache."""
        cache, copies = copy.cache, self._copies
        if isinstance(copies, dict):
            del copies[cache]
            if len(copies) <= _FEW // 2:
                self._copies = tuple(copies.values())
        else:
            left = tuple([each for each in self.copies if each is not copy])
            self._copies = left[0] if len(left) == 1 else left
        if copy.children:
            self._count_below(cache, copy.children)
        return self.parent._count_below(cache, -1) if self.parent is not None else 0

    @property
    def below(self) -> dict[NodeCache, int]:
        """How many copies the node's children have, by cache; deleted children included."""
        counts = {copy.cache: copy.children for copy in self.copies if copy.children}
        return counts if self._below is None else {**counts, **self._below}

    def _count_below(self, cache: NodeCache, change: int) -> int:
        """Count copies of children in a cache; how many there are now."""
        copy = self.copy_in(cache)
        if copy is not None:
            copy.children += change
            return copy.children
        below = self._below or {}
        count = below.get(cache, 0) + change
        if count:
            below[cache] = count
        else:
            del below[cache]
        self._below = below or None
        return count

    @property
    def root(self) -> Node:
        """The root that this node is below, or this one."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def path(self) -> list[Node]:
        """The nodes from the first document down to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def is_below(self, above: Node) -> bool:
        """Whether another node is on the path to this one."""
        node = self.parent
        while node is not None and node is not above:
            node = node.parent
        return node is not None

    def count_access(self, tick: int, now: float, window_s: float | None) -> None:
        """Count a request for the node.

        ``frequency`` covers the last ``window_s`` seconds, or the node's whole life if that is None. The window slides:
        the count of the last full window is weighted by the share of it that is still in sight. So two numbers a node
        suffice.
        """
        self.last_access = tick
        if window_s is None:
            self.accesses += 1
            self.frequency = float(self.accesses)
            return
        window, into = divmod(now, window_s)
        if window != self.window:
            self.previous_accesses = self.accesses if window == self.window + 1 else 0
            self.accesses = 0
            self.window = int(window)
        self.accesses += 1
        self.frequency = self.accesses + self.previous_accesses * (1 - into / window_s)

    def recall(self, accesses: int, last_access: int, average_cost: float) -> None:
        """Take over the counts of a former controller, all as if from the window that begins now."""
        self.accesses = accesses
        self.frequency = float(accesses)
        self.last_access = last_access
        self.average_cost = average_cost
        self.computations = 1

    @property
    def cost_by_room(self) -> float:
        """Seconds of computing that a copy spares, by what it takes up: Cost/Size of RAGCache, eq. 1.

        Sliding windows make a long document's copy smaller than its tokens, and a short one's larger.
        """
        return self.average_cost if self.room == self.tokens else self.average_cost * self.tokens / self.room

    def count_computation(self, seconds_per_token: float) -> None:
        """Count a request that computes the node: ``average_cost`` is the mean over these (RAGCache, eq. 3)."""
        self.computations += 1
        self.average_cost += (seconds_per_token - self.average_cost) / self.computations


class Copy:
    """A node's KV in one cache. Until it is ``held``, the cache only reserves room for it.

    ``page`` is the number of the copy's first page in host memory; -1 without one, as in other tiers.

    ``writer`` is None for a confirmed copy. A copy in a shared tier is confirmed when the instance that writes it, its
    ``writer``, has reported that it is there. Until then no other instance finds it. It is empty if the writer is gone,
    or if any instance may write the copy.

    A ``condemned`` copy is no longer found. It keeps its room until the last plan that may use it ends: ``condemned``
    is the number of the last request that may use it, and ``users`` counts those that have not ended. It is ``absent``
    if the engine reported that its KV is not there.

    ``children`` counts the copies of the node's children in the same cache.

    ``priority`` is what the policy computed at the node's last access, for policies that rank by access. ``ticket`` and
    ``entered`` belong to the eviction order: the copy's entry (0 for none), and its priority on entry.
    """

    __slots__ = (
        "absent",
        "cache",
        "children",
        "condemned",
        "entered",
        "held",
        "node",
        "page",
        "priority",
        "ticket",
        "users",
        "writer",
    )

    def __init__(self, node: Node, cache: NodeCache, held: bool, page: int = -1) -> None:
        self.node = node
        self.cache = cache
        self.held = held
        self.absent = False
        # In 32 bits: there may be dozens of copies of a node.
        self.page: i32 = page
        self.children: i32 = 0
        self.users: i32 = 0
        self.condemned = 0
        self.priority = 0.0
        self.writer: str | None = None
        self.ticket = 0
        self.entered = 0.0

    @property
    def confirmed(self) -> bool:
        """Whether the cache is known to hold the KV."""
        return self.held and self.writer is None

    @property
    def pages(self) -> Pages | None:
        """The copy's pages in host memory; None in other tiers. The cache knows them, so ask once."""
        return self.cache.pages_of(self)


class NodeCache(ABC):
    """A tier's cache as its copies and the policies see it; ``TierCache`` implements it.

    ``rank`` orders the tiers from 0, the fastest. ``instance`` is None for a tier that instances share. ``location``
    names what it belongs to: a machine or, if it is a disk that several machines may mount, that disk; a GPU has the
    location of its instance. ``clock`` is the greatest priority evicted so far (RAGCache, Algorithm 1): each cache
    ages on its own. ``inserted_tokens``, ``evictions`` and ``pinned_tokens`` are totals.
    """

    def __init__(self, tier: Tier, capacity: int, instance: str | None, location: str) -> None:
        self.tier = tier
        self.rank = tuple(Tier).index(tier)
        self.capacity = capacity
        self.instance = instance
        self.location = location
        self.clock = 0.0
        self.inserted_tokens = 0
        self.evictions = 0
        self.pinned_tokens = 0

    @property
    def owner(self) -> str:
        """The instance whose GPU this is, or the location whose instances share it."""
        return self.location if self.instance is None else self.instance

    @abstractmethod
    def reaches(self, cache: NodeCache) -> bool:
        """Whether a cache is this one, or a slower one that what is evicted here goes to."""

    @abstractmethod
    def pages_of(self, copy: Copy) -> Pages | None:
        """The numbered pages of a copy, if the cache has such pages."""

    @abstractmethod
    def remove(self, copy: Copy) -> Pages | None:
        """Remove a copy; its numbered pages, which are free now. Its parent's copy may become a leaf."""

    @abstractmethod
    def touch(self, copy: Copy) -> None:
        """Update a copy's priority after an access to its node."""

    @abstractmethod
    def reconsider(self, copy: Copy) -> None:
        """Update a copy whose priority may have fallen without an access."""

    @abstractmethod
    def withdraw(self, copy: Copy) -> None:
        """Make a copy unevictable. Its owner removes it."""

    @abstractmethod
    def offer(self, copy: Copy) -> None:
        """Make a copy evictable, unless a lock, a pin or a child forbids it."""

    def pass_on(self, copy: Copy, writer: str | None) -> None:
        """Note that a copy's writer has changed; None if the copy is confirmed."""
        copy.writer = writer
        self.offer(copy)
