"""A node of the knowledge tree: one document behind one sequence of documents."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from protocol.errors import UnknownNode
from protocol.kv import pages_spanned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachectl.tree.tier_cache import Copy, TierCache

KEY_BYTES = 16


def child_key(parent_key: bytes, content: str) -> bytes:
    """The key of a document behind a path: H(parent's key, content hash), the same in every process and on disk."""
    return blake2b(content.encode(), key=parent_key, digest_size=KEY_BYTES).digest()


def root_key(namespace: str) -> bytes:
    """The key of a namespace's root. A namespace stands for a tenant and the fingerprint of a model."""
    return blake2b(namespace.encode(), digest_size=KEY_BYTES).digest()


def path_keys(namespace: str, contents: Sequence[str]) -> list[bytes]:
    """The keys of all nodes on a path, first document first."""
    keys = []
    key = root_key(namespace)
    for content in contents:
        key = child_key(key, content)
        keys.append(key)
    return keys


def path_below(root: Node | None, contents: Sequence[str]) -> list[Node]:
    """The nodes of a path. Raises UnknownNode unless all of it is there."""
    nodes: list[Node] = []
    node = root
    for content in contents:
        node = node.children.get(content) if node is not None else None
        if node is None:
            raise UnknownNode(f"document {content!r} is not in the knowledge tree behind {len(nodes)} others")
        nodes.append(node)
    if not nodes:
        raise UnknownNode("a path has at least one document")
    return nodes


class Node:
    """One document in one path, with its copies, its locks and what replacement policies learn of it.

    ``content`` is the document's content hash, ``tokens`` its length, ``prefix_tokens`` that of everything in front of
    it. ``room`` is what it takes up in a cache: whole pages of ``page_tokens`` tokens, cut where the prompt's are.
    ``copies`` has an entry for each cache that holds its KV or keeps room for it; ``below`` counts the copies of
    its children by cache. ``locks`` counts plans that use the node and ``pins`` its own pins and those of its
    descendants: neither may be evicted. ``history`` is the policy's own. A ``detached`` node is in the tree no longer,
    though a plan may still use it. A root has no document, no tokens and no copies, and is thought to lie everywhere.
    """

    __slots__ = (
        "accesses",
        "average_cost",
        "below",
        "children",
        "computations",
        "content",
        "copies",
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
        "root",
        "tokens",
        "window",
    )

    def __init__(self, key: bytes, content: str, tokens: int, parent: Node | None, page_tokens: int = 1) -> None:
        self.key = key
        self.content = content
        self.tokens = tokens
        self.parent = parent
        self.root: Node = self if parent is None else parent.root
        self.prefix_tokens: int = 0 if parent is None else parent.prefix_tokens + parent.tokens
        self.room: int = tokens
        if page_tokens > 1:
            self.room = len(pages_spanned(self.prefix_tokens, tokens, page_tokens)) * page_tokens
        self.children: dict[str, Node] = {}
        self.copies: dict[TierCache, Copy] = {}
        self.below: dict[TierCache, int] = {}
        self.locks = 0
        self.pins = 0
        self.detached = False
        self.frequency = 0.0
        self.history: object = None
        self.accesses = 0
        self.previous_accesses = 0
        self.window = 0
        self.last_access = 0
        self.average_cost = 0.0
        self.computations = 0

    def child(self, content: str) -> Node | None:
        """The document behind this one, if its KV is in any cache."""
        node = self.children.get(content)
        return node if node is not None and any(copy.held for copy in node.copies.values()) else None

    @property
    def depth(self) -> int:
        """Documents on the path down to this one; 0 for a root."""
        depth, node = 0, self
        while node.parent is not None:
            depth, node = depth + 1, node.parent
        return depth

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

    def count_access(self, tick: int, now: float, window_s: float | None) -> None:
        """Count a request for the node: its ``frequency`` is that of the last ``window_s`` seconds, or of all its life.

        The window slides by weighing what the last whole window counted with the share of it still in sight, so two
        numbers a node suffice.
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
        """Take over what another controller had counted; the whole of it as if in the window that begins now."""
        self.accesses = accesses
        self.frequency = float(accesses)
        self.last_access = last_access
        self.average_cost = average_cost
        self.computations = 1

    def count_computation(self, seconds_per_token: float) -> None:
        """Count a request that had to compute the node: ``average_cost`` is the mean over these (RAGCache, eq. 3)."""
        self.computations += 1
        self.average_cost += (seconds_per_token - self.average_cost) / self.computations
