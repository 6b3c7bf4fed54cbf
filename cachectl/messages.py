"""What messages mean to the scheduler and the tree."""

from collections.abc import Iterable

from cachectl.grant import PathDocument
from cachectl.scheduler import Request
from protocol.errors import UnknownNode
from protocol.kv import LostCopy
from protocol.plans import AdmissionRequest
from protocol.prompts import SegmentKind
from protocol.tiers import Tier


def request_of(admission: AdmissionRequest, namespace: str) -> Request:
    """The request for a prompt: the segments in front of the first question are its path, under the tree's namespace.

    What stands behind is computed anew each time.
    """
    documents: list[PathDocument] = []
    question_tokens = 0
    pinned = 0
    for segment in admission.prompt.segments:
        tokens = len(segment.token_ids)
        if question_tokens or segment.kind is SegmentKind.QUESTION:
            question_tokens += tokens
        elif tokens:
            pinned += segment.kind is SegmentKind.SYSTEM and pinned == len(documents)
            documents.append(PathDocument(segment.key, tokens))
    return Request(admission.query_id, namespace, tuple(documents), question_tokens, pinned)


def lost_copies(lost: Iterable[LostCopy]) -> list[tuple[bytes, Tier]]:
    """Lost copies by the bytes of their nodes' keys. Raises UnknownNode for what can be no key."""
    copies = []
    for copy in lost:
        try:
            copies.append((bytes.fromhex(copy.node), copy.tier))
        except ValueError:
            raise UnknownNode(f"{copy.node!r} is not the key of a node") from None
    return copies
