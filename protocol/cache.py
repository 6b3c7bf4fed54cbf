"""The knowledge tree as operators see it, and their requests about it."""

import msgspec

from protocol.retrieval import StoreRevision
from protocol.tiers import Tier


class TierStats(msgspec.Struct, frozen=True):
    """State of one tier, in tokens and nodes. ``instance`` is None for a tier that a machine's instances share.

    ``evictions`` counts the nodes that have left the tier. ``place`` names it as ``TreeNode`` does.
    """

    tier: Tier
    instance: str | None
    capacity_tokens: int
    used_tokens: int
    pinned_tokens: int
    nodes: int
    evictions: int
    place: str


class TreeNode(msgspec.Struct, frozen=True):
    """A node of the knowledge tree. ``places`` lists its tiers, with ``@instance`` appended for an instance's own tier.

    If there are several machines, ``@`` and the machine's name are appended for a tier that its instances share.

    ``requests_ago`` counts the requests since the node's last use. ``hidden`` counts the children that the view leaves
    out.
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
    """The most used nodes of a tree: for each namespace its first documents, with their children.

    ``nodes`` counts all nodes of the tree.
    """

    namespaces: dict[str, tuple[TreeNode, ...]]
    nodes: int
    tiers: tuple[TierStats, ...]


class CachePath(msgspec.Struct, frozen=True):
    """The path to a node: the content hashes from the first segment of the prompt down to the node."""

    namespace: str
    contents: tuple[str, ...]


class DocumentDeletion(msgspec.Struct, frozen=True):
    """A deleted document: the content hashes of its chunks. A ``namespace`` of None means all namespaces.

    Its store had none of these contents at the revision ``gone_at``, so what was found before must not bring them back.
    None means that the document is still stored: only its KV is deleted, and who finds the document computes it again.
    """

    contents: tuple[str, ...]
    namespace: str | None = None
    gone_at: StoreRevision | None = None


class RestoreResult(msgspec.Struct, frozen=True):
    """Result of restoring a tree: copies ``restored``, and copies ``refused`` for lack of room or of their parent."""

    restored: int
    refused: int
