"""What lies in the knowledge tree, as its controller tells its operators, and what they ask of it."""

import msgspec

from protocol.tiers import Tier


class TierStats(msgspec.Struct, frozen=True):
    """A tier now, in tokens and nodes, and how many nodes ever left it. ``instance`` is None for a shared tier."""

    tier: Tier
    instance: str | None
    capacity_tokens: int
    used_tokens: int
    pinned_tokens: int
    nodes: int
    evictions: int


class TreeNode(msgspec.Struct, frozen=True):
    """A node as operators see it. ``places`` lists tiers, with ``@instance`` behind one that is an instance's own.

    ``requests_ago`` counts the requests since its last use. ``hidden`` counts children that the view leaves out.
    """

    key: str
    content: str
    tokens: int
    places: tuple[str, ...]
    frequency: float
    requests_ago: int
    locked: bool
    pinned: bool
    children: tuple["TreeNode", ...]
    hidden: int


class TreeView(msgspec.Struct, frozen=True):
    """The most used of a tree of ``nodes``: by namespace the documents that stand first, and what lies behind them."""

    namespaces: dict[str, tuple[TreeNode, ...]]
    nodes: int
    tiers: tuple[TierStats, ...]


class CachePath(msgspec.Struct, frozen=True):
    """A node named from outside: the content hashes from the first segment of the prompt down to its own."""

    namespace: str
    contents: tuple[str, ...]


class DocumentDeletion(msgspec.Struct, frozen=True):
    """A document that is no more: the content hashes of its chunks, in one namespace or, if None, in all."""

    contents: tuple[str, ...]
    namespace: str | None = None


class RestoreResult(msgspec.Struct, frozen=True):
    """What a rebuilt tree took over: copies ``restored``, and ``refused`` for want of room or of what they stand on."""

    restored: int
    refused: int
