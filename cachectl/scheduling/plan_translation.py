"""Translation between the controller's messages and the scheduler's and the tree's own terms."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

import msgspec

from cachectl.nodes.node import PathDocument
from cachectl.scheduling.document_order import CachedNode, OrderStrategy
from cachectl.scheduling.request import Request
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import UnknownNode
from protocol.kv import LostCopy
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

_SPARE_NODES = 16
"""Nodes that a plan names as the ones that its instance's GPU should give up first."""


def request_of(query_id: str, namespace: str, prompt: Prompt, unshared: bool = False) -> Request:
    """The request for a prompt: the segments in front of the question are its path in the tree's namespace.

    An ``unshared`` prompt has no path at all.
    """
    prefix = () if unshared else prompt.prefix
    system = sum(1 for _ in takewhile(_is_system, prefix))
    documents = tuple(PathDocument(segment.key, len(segment.token_ids)) for segment in prefix)
    question_tokens = prompt.token_count - sum(document.tokens for document in documents)
    return Request(query_id, namespace, documents, question_tokens, system)


def reordered(prompt: Prompt, strategy: OrderStrategy, root: CachedNode | None, scores: Sequence[float] = ()) -> Prompt:
    """The prompt with its documents in a strategy's order.

    ``root`` is its namespace's root, if the tree has one; ``scores`` are those of the search for its documents, and
    possibly for more.
    """
    documents = prompt.documents
    for segment in takewhile(_is_system, prompt.prefix):
        root = root.child(segment.key) if root is not None else None
    order = iter(strategy([document.key for document in documents], root, scores))
    segments = tuple(
        documents[next(order)] if segment.kind is SegmentKind.DOCUMENT else segment for segment in prompt.segments
    )
    return msgspec.structs.replace(prompt, segments=segments)


def _is_system(segment: Segment) -> bool:
    return segment.kind is SegmentKind.SYSTEM


def spare_keys(tree: KnowledgeTree, instance: str) -> tuple[str, ...]:
    """The keys of the nodes that an instance's GPU should give up first, in that order."""
    return tuple(copy.node.key.hex() for copy in tree.tiers.gpu(instance).spare(_SPARE_NODES))


def lost_copies(lost: Iterable[LostCopy]) -> list[tuple[bytes, Tier]]:
    """Copies lost at the reporting instance's own location, as keys and tiers.

    Raises UnknownNode for a string that is no key.
    """
    return [(_key(copy.node), copy.tier) for copy in lost if not copy.location]


def lost_at_peers(lost: Iterable[LostCopy]) -> dict[str, list[tuple[bytes, Tier]]]:
    """Copies lost at other locations, by location, as keys and tiers.

    Raises UnknownNode for a string that is no key.
    """
    copies: dict[str, list[tuple[bytes, Tier]]] = {}
    for copy in lost:
        if copy.location:
            copies.setdefault(copy.location, []).append((_key(copy.node), copy.tier))
    return copies


def _key(node: str) -> bytes:
    try:
        return bytes.fromhex(node)
    except ValueError:
        raise UnknownNode(f"{node!r} is not the key of a node") from None
