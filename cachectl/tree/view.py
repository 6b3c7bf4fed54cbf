"""The knowledge tree as operators see it: statistics by tier, and its most used nodes."""

from __future__ import annotations

import heapq
from itertools import count

from cachectl.nodes.node import Node, NodeCache
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.cache import TierStats, TreeNode, TreeView
from protocol.tiers import Tier


def tier_stats(tree: KnowledgeTree) -> tuple[TierStats, ...]:
    """What each tier cache holds, and how much it has evicted. Tiers without capacity are left out."""
    return tuple(
        TierStats(
            cache.tier,
            cache.instance,
            cache.capacity,
            cache.used,
            cache.pinned_tokens,
            cache.copies,
            cache.evictions,
            _place(cache, tree),
        )
        for cache in tree.tiers
        if cache.capacity
    )


def tree_view(tree: KnowledgeTree, depth: int, limit: int) -> TreeView:
    """The ``limit`` most used nodes, down to ``depth`` documents. Siblings are ordered by use."""
    shown = _most_used(tree, depth, limit)
    return TreeView(
        namespaces={namespace: _children(tree, root, shown) for namespace, root in sorted(tree.registry.roots.items())},
        nodes=len(tree.registry.nodes),
        tiers=tier_stats(tree),
    )


def _most_used(tree: KnowledgeTree, depth: int, limit: int) -> dict[Node, list[Node]]:
    """The children to show below each node: the most used of those whose parents are shown, in that order."""
    shown: dict[Node, list[Node]] = {}
    # Numbers break ties, as nodes cannot be compared.
    numbers = count()
    waiting: list[tuple[tuple[float, str], int, int, Node]] = []

    def reach(parent: Node, left: int) -> None:
        shown[parent] = []
        if left:
            # A tree may have a hundred thousand first documents. No more than ``limit`` can be shown.
            for child in heapq.nsmallest(limit, parent.children, key=_order):
                heapq.heappush(waiting, (_order(child), next(numbers), left - 1, child))

    for root in tree.registry.roots.values():
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


def _children(tree: KnowledgeTree, node: Node, shown: dict[Node, list[Node]]) -> tuple[TreeNode, ...]:
    return tuple(_view(tree, child, shown) for child in shown[node])


def _view(tree: KnowledgeTree, node: Node, shown: dict[Node, list[Node]]) -> TreeNode:
    return TreeNode(
        key=node.key.hex(),
        content=node.content,
        tokens=node.tokens,
        places=tuple(_place(copy.cache, tree) for copy in node.copies if copy.held),
        frequency=node.frequency,
        requests_ago=tree.grants.tick - node.last_access,
        locked=node.locks > 0,
        pinned=node.pins > 0,
        children=_children(tree, node, shown),
        hidden=len(node.children) - len(shown[node]),
    )


def _place(cache: NodeCache, tree: KnowledgeTree) -> str:
    """The tier, with its instance, or with its location or disk if there are several."""
    places = tree.tiers.disks if cache.tier is Tier.DISK else tree.tiers.locations
    alone = cache.instance is None and len(places) == 1
    return cache.tier.value if alone else f"{cache.tier.value}@{cache.owner}"
