"""Pins: paths that stay whatever comes, within a share of every cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.tree.tier_cache import PINNED_SHARE
from protocol.errors import PinRefused, UnknownNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cachectl.tree.node import Node
    from cachectl.tree.tier_cache import TierCache


class Pins:
    """Pins paths of nodes. A node's ``pins`` count its own and those of its descendants, which cannot stay without it.

    ``caches`` are all caches that nodes may lie in, as they are when asked for.
    """

    def __init__(self, caches: Iterable[TierCache]) -> None:
        self._places = caches

    def pin(self, path: Sequence[Node]) -> None:
        """Keep all nodes of a path until it is unpinned. Raises PinRefused; then nothing has changed."""
        for cache, tokens in self._to_come(path):
            if not cache.may_pin(tokens):
                raise PinRefused(
                    f"pins may take {PINNED_SHARE:.0%} of the {cache.tier} tier's {cache.capacity} tokens; "
                    f"{cache.pinned_tokens} are pinned and these are {tokens} more"
                )
        for node in path:
            _add(node)

    def pin_if_room(self, node: Node) -> None:
        """Pin a node's path, unless it is pinned or that would be too much."""
        if not node.pins:
            path = node.path
            if all(cache.may_pin(tokens) for cache, tokens in self._to_come(path)):
                for above in path:
                    _add(above)

    def unpin(self, path: Sequence[Node]) -> None:
        """Take back a pin of a path. Raises UnknownNode if it has none of its own."""
        if path[-1].pins <= sum(child.pins for child in path[-1].children.values()):
            raise UnknownNode("this path is not pinned")
        for node in path:
            _take(node, 1)

    def take_off_above(self, node: Node) -> None:
        """Take a node's pins off what stands above it: they go with it."""
        if node.pins:
            for above in reversed(node.path[:-1]):
                if above.detached:
                    # It took all pins off what stands above it, this one's too, when it went.
                    return
                _take(above, node.pins)

    def _to_come(self, path: Sequence[Node]) -> Iterator[tuple[TierCache, int]]:
        """The tokens that pinning a path would pin in each cache, those that are pinned already left out."""
        for cache in self._places:
            yield cache, sum(node.room for node in path if not node.pins and cache in node.copies)


def _add(node: Node) -> None:
    node.pins += 1
    if node.pins == 1:
        for copy in node.copies.values():
            copy.cache.pinned_tokens += node.room


def _take(node: Node, pins: int) -> None:
    node.pins -= pins
    for copy in node.copies.values():
        if not node.pins:
            copy.cache.pinned_tokens -= node.room
        copy.cache.offer(copy)
