"""What messages mean to the scheduler and the tree."""

from collections.abc import Iterable
from itertools import takewhile

from cachectl.grant import Grant, PathDocument
from cachectl.scheduler import Request
from cachectl.tree import KnowledgeTree
from protocol.errors import UnknownNode
from protocol.kv import LostCopy
from protocol.plans import PlannedNode
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier

# Nodes that a plan names as those that its instance's GPU can do without best.
_SPARE = 16


def request_of(query_id: str, namespace: str, prompt: Prompt, unshared: bool = False) -> Request:
    """The request for a prompt: the segments in front of the first question are its path, under the tree's namespace.

    What stands behind is computed anew each time; so is all of an ``unshared`` prompt, which has no path.
    """
    prefix = () if unshared else prompt.prefix
    documents = tuple(PathDocument(segment.key, len(segment.token_ids)) for segment in prefix)
    question_tokens = prompt.token_count - sum(document.tokens for document in documents)
    system = sum(1 for _ in takewhile(lambda segment: segment.kind is SegmentKind.SYSTEM, prefix))
    return Request(query_id, namespace, documents, question_tokens, system)


def planned_nodes(grant: Grant) -> tuple[PlannedNode, ...]:
    """What a grant says of each document of its path."""
    return tuple(PlannedNode(step.key.hex(), step.tokens, step.source, step.kept, step.pages) for step in grant.steps)


def spare_keys(tree: KnowledgeTree, instance: str) -> tuple[str, ...]:
    """The keys of what an instance's GPU can do without best, first first."""
    return tuple(copy.node.key.hex() for copy in tree.placement.gpu(instance).spare(_SPARE))


def lost_copies(lost: Iterable[LostCopy]) -> list[tuple[bytes, Tier]]:
    """Lost copies by the bytes of their nodes' keys. Raises UnknownNode for what can be no key."""
    copies = []
    for copy in lost:
        try:
            copies.append((bytes.fromhex(copy.node), copy.tier))
        except ValueError:
            raise UnknownNode(f"{copy.node!r} is not the key of a node") from None
    return copies
