"""The knowledge tree as operators see it."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

from protocol.cache import TierStats, TreeNode, TreeView

if TYPE_CHECKING:
    from cachectl.tree.knowledge_tree import KnowledgeTree
    from cachectl.tree.node import Node
    from cachectl.tree.tier_cache import TierCache


def tier_stats(tree: KnowledgeTree) -> tuple[TierStats, ...]:
    """Every cache with room: what it holds and what has left it."""
    return tuple(
        TierStats(
            cache.tier,
            cache.instance,
            cache.capacity,
            cache.used,
            cache.pinned_tokens,
            cache.copies,
            cache.evictions,
        )
        for cache in tree.tiers
        if cache.capacity
    )


def tree_view(tree: KnowledgeTree, depth: int, limit: int) -> TreeView:
    """The tree down to ``depth`` documents, ``limit`` nodes at most: the most used, which come first among siblings."""
    shown = _most_used(tree, depth, limit)
    return TreeView(
        namespaces={namespace: _children(root, shown, tree.tick) for namespace, root in sorted(tree.roots.items())},
        nodes=len(tree.nodes),
        tiers=tier_stats(tree),
    )


def _most_used(tree: KnowledgeTree, depth: int, limit: int) -> dict[Node, list[Node]]:
    """What is shown below each node: the most used of those whose parents are shown, in that order."""
    shown: dict[Node, list[Node]] = {}
    # Numbered, so that nodes themselves are never compared.
    numbers = count()
    waiting: list[tuple[tuple[float, str], int, int, Node]] = []

    def reach(parent: Node, left: int) -> None:
        shown[parent] = []
        if left:
            # Of a tree's hundred thousand first documents, not more than could be shown.
            for child in heapq.nsmallest(limit, parent.children.values(), key=_order):
                heapq.heappush(waiting, (_order(child), next(numbers), left - 1, child))

    for root in tree.roots.values():
        reach(root, depth)
    for _ in range(limit):
        if not waiting:
            break
        *_, left, node = heapq.heappop(waiting)
        assert node.parent is not None, "roots are not shown"
        shown[node.parent].append(node)
        reach(node, left)
    return shown


def _order(node: Node) -> tuple[float, str]:
    return -node.frequency, node.content


def _children(node: Node, shown: dict[Node, list[Node]], tick: int) -> tuple[TreeNode, ...]:
    return tuple(_view(child, shown, tick) for child in shown[node])


def _view(node: Node, shown: dict[Node, list[Node]], tick: int) -> TreeNode:
    return TreeNode(
        key=node.key.hex(),
        content=node.content,
        tokens=node.tokens,
        places=tuple(_name(cache) for cache, copy in node.copies.items() if copy.held),
        frequency=node.frequency,
        requests_ago=tick - node.last_access,
        locked=node.locks > 0,
        pinned=node.pins > 0,
        children=_children(node, shown, tick),
        hidden=len(node.children) - len(shown[node]),
    )


def _name(cache: TierCache) -> str:
    return cache.tier.value if cache.instance is None else f"{cache.tier.value}@{cache.instance}"
