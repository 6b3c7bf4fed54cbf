"""What messages mean to the scheduler and the tree."""

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from cachectl.scheduling.document_order import CachedNode, OrderStrategy
from cachectl.scheduling.request import Request
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.node import PathDocument
from protocol.errors import UnknownNode
from protocol.kv import LostCopy
from protocol.plans import PlannedNode
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

# Nodes that a plan names as those that its instance's GPU can do without best.
_SPARE = 16


def request_of(
    query_id: str, namespace: str, prompt: Prompt, unshared: bool = False, cached_documents: int | None = None
) -> Request:
    """The request for a prompt: the segments in front of the first question are its path, under the tree's namespace.

    Where only so many documents are ``cached_documents``, the path ends with them. What stands behind is computed anew
    each time; so is all of an ``unshared`` prompt, which has no path.
    """
    prefix = () if unshared else prompt.prefix
    system = sum(1 for _ in takewhile(_is_system, prefix))
    if cached_documents is not None:
        prefix = prefix[: system + cached_documents]
    documents = tuple(PathDocument(segment.key, len(segment.token_ids)) for segment in prefix)
    question_tokens = prompt.token_count - sum(document.tokens for document in documents)
    return Request(query_id, namespace, documents, question_tokens, system)


def reordered(prompt: Prompt, strategy: OrderStrategy, root: CachedNode | None) -> Prompt:
    """The prompt with its documents as a strategy orders them; ``root`` is the tree's root of its namespace, if any."""
    documents = prompt.documents
    for segment in takewhile(_is_system, prompt.prefix):
        root = root.child(segment.key) if root is not None else None
    order = iter(strategy([document.key for document in documents], root))
    segments = tuple(
        documents[next(order)] if segment.kind is SegmentKind.DOCUMENT else segment for segment in prompt.segments
    )
    return msgspec.structs.replace(prompt, segments=segments)


def planned_nodes(grant: Grant) -> tuple[PlannedNode, ...]:
    """What a grant says of each document of its path."""
    return tuple(
        PlannedNode(step.key.hex(), step.tokens, step.source, step.kept, step.pages) for step in grant.documents
    )


def _is_system(segment: Segment) -> bool:
    return segment.kind is SegmentKind.SYSTEM


def spare_keys(tree: KnowledgeTree, instance: str) -> tuple[str, ...]:
    """The keys of what an instance's GPU can do without best, first first."""
    return tuple(copy.node.key.hex() for copy in tree.tiers.gpu(instance).spare(_SPARE))


def lost_copies(lost: Iterable[LostCopy]) -> list[tuple[bytes, Tier]]:
    """Lost copies by the bytes of their nodes' keys. Raises UnknownNode for what can be no key."""
    copies = []
    for copy in lost:
        try:
            copies.append((bytes.fromhex(copy.node), copy.tier))
        except ValueError:
            raise UnknownNode(f"{copy.node!r} is not the key of a node") from None
    return copies
