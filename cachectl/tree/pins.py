"""Pins: paths that are never evicted, within a share of every tier cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cachectl.nodes.node import Node
from cachectl.tiers.tier_cache import PINNED_SHARE, TierCache
from protocol.errors import PinRefused, UnknownNode


class Pins:
    """Pins paths of nodes. A node's ``pins`` count its own and its descendants', which depend on it.

    ``caches`` iterates over all tier caches, current at each call.
    """

    def __init__(self, caches: Iterable[TierCache]) -> None:
        self._caches = caches

    def pin(self, path: Sequence[Node]) -> None:
        """Pin all nodes of a path once more. Raises PinRefused; then nothing has changed."""
        for cache, tokens in self._new_tokens(path):
            if not cache.may_pin(tokens):
                raise PinRefused(
                    f"pins may take {PINNED_SHARE:.0%} of the {cache.tier} tier's {cache.capacity} tokens; "
                    f"{cache.pinned_tokens} are pinned and these are {tokens} more"
                )
        for node in path:
            _add(node)

    def pin_if_room(self, node: Node) -> None:
        """Pin a node's path, unless it is pinned or its pins would exceed a cache's share."""
        if not node.pins:
            path = node.path
            if all(cache.may_pin(tokens) for cache, tokens in self._new_tokens(path)):
                for above in path:
                    _add(above)

    def unpin(self, path: Sequence[Node]) -> None:
        """Take back one pin of a path. Raises UnknownNode if the path itself has none."""
        if path[-1].pins <= sum(child.pins for child in path[-1].children):
            raise UnknownNode("this path is not pinned")
        for node in path:
            _take(node, 1)

    def unpin_above(self, node: Node) -> None:
        """Take a leaving node's pins off its ancestors."""
        if node.pins:
            for above in reversed(node.path[:-1]):
                if above.detached:
                    # It took all pins off its own ancestors when it left, this node's included.
                    return
                _take(above, node.pins)

    def _new_tokens(self, path: Sequence[Node]) -> Iterator[tuple[TierCache, int]]:
        """Tokens that pinning a path adds to each cache. Pinned nodes add none."""
        for cache in self._caches:
            yield cache, sum(node.room for node in path if not node.pins and node.copy_in(cache) is not None)


def _add(node: Node) -> None:
    node.pins += 1
    if node.pins == 1:
        for copy in node.copies:
            copy.cache.pinned_tokens += node.room


def _take(node: Node, pins: int) -> None:
    node.pins -= pins
    for copy in node.copies:
        if not node.pins:
            copy.cache.pinned_tokens -= node.room
        copy.cache.offer(copy)
