"""Pins of documents: finds their nodes in the knowledge tree through the prompt layout."""

from collections.abc import Sequence
from contextlib import suppress

from protocol.cache import CachePath
from protocol.errors import PinRefused, UnknownNode
from protocol.parts import Controller, PromptLayout
from protocol.prompts import ChatMessage, SegmentKind
from protocol.retrieval import Chunk


def system_path(layout: PromptLayout) -> tuple[str, ...]:
    """Keys of the system prompt that every prompt begins with. An empty one has no node."""
    prompt = layout.lay_out((ChatMessage("user", "?"),), (), max_tokens=1)
    return tuple(s.key for s in prompt.segments if s.kind is SegmentKind.SYSTEM and s.token_ids)


async def pin_document(
    controller: Controller, layout: PromptLayout, namespace: str, chunks: Sequence[Chunk], pinned: bool
) -> int:
    """Pin or unpin the nodes of a document's chunks directly below the system prompt. Returns their number.

    Raises UnknownNode if there is no such node, and PinRefused. Changes nothing then.
    """
    above = system_path(layout)
    paths = [CachePath(namespace, (*above, content)) for content in dict.fromkeys(c.content_hash for c in chunks)]
    held = await (_pin if pinned else _unpin)(controller, paths)
    if not held:
        missing = "is cached directly after the system prompt; warm it up first" if pinned else "is pinned"
        raise UnknownNode(f"No chunk of this document {missing}.", "document_id")
    return held


async def _pin(controller: Controller, paths: Sequence[CachePath]) -> int:
    done: list[CachePath] = []
    for path in paths:
        try:
            await controller.pin(path)
            done.append(path)
        except UnknownNode:
            continue
        except PinRefused:
            for pinned in done:
                await controller.pin(pinned, pinned=False)
            raise
    return len(done)


async def _unpin(controller: Controller, paths: Sequence[CachePath]) -> int:
    held = 0
    for path in paths:
        # A node may be pinned several times; unpinning removes all pins.
        taken = 0
        with suppress(UnknownNode):
            while True:
                await controller.pin(path, pinned=False)
                taken += 1
        held += taken > 0
    return held
