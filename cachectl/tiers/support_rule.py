"""The support rule: a copy lies where its parent's copy is, or in a slower shared tier that this one is swapped to.

A prefix is useful only from its start, so KV whose parent is out of reach is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachectl.nodes.node import Copy, Node, NodeCache


def supports(copy: Copy, cache: NodeCache) -> bool:
    """Whether a node's copy supports its children's copies in a cache: the same one, or a slower one in its reach."""
    return copy.cache.reaches(cache)


def is_supported(parent: Node | None, cache: NodeCache, reserved: Sequence[Copy]) -> bool:
    """Whether a child of ``parent`` may lie in a cache. ``reserved`` copies of the same plan count as held."""
    if parent is None or parent.parent is None:
        return True
    there = parent.copy_in(cache)
    if there is not None and there.held:
        return True
    return any((copy.held or copy in reserved) and supports(copy, cache) for copy in parent.copies)


def unsupported_below(node: Node) -> list[Copy]:
    """Copies of a node's children that lost their support."""
    orphans: list[Copy] = []
    if node.parent is None:
        return orphans
    for cache in node.below:
        if any(supports(copy, cache) and copy.held for copy in node.copies):
            continue
        below = [copy for child in node.children if (copy := child.copy_in(cache)) is not None]
        promised = any(supports(copy, cache) and not copy.condemned for copy in node.copies)
        orphans += [copy for copy in below if not copy.condemned and (copy.held or not promised)]
    return orphans
