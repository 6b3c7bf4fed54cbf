"""The knowledge tree as operators see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.cache import TierStats, TreeNode, TreeView

if TYPE_CHECKING:
    from cachectl.node import Node
    from cachectl.place import Place
    from cachectl.tree import KnowledgeTree


def tier_stats(tree: KnowledgeTree) -> tuple[TierStats, ...]:
    """Every place with room: what it holds and what has left it."""
    return tuple(
        TierStats(
            place.tier,
            place.instance,
            place.capacity,
            place.used,
            place.pinned_tokens,
            place.copies,
            place.evictions,
        )
        for place in tree.placement
        if place.capacity
    )


def tree_view(tree: KnowledgeTree, depth: int) -> TreeView:
    """The tree down to ``depth`` documents, the most used first among siblings."""
    return TreeView(
        namespaces={namespace: _children(root, depth, tree.tick) for namespace, root in sorted(tree.roots.items())},
        nodes=len(tree.nodes),
        tiers=tier_stats(tree),
    )


def _children(node: Node, depth: int, tick: int) -> tuple[TreeNode, ...]:
    if not depth:
        return ()
    children = sorted(node.children.values(), key=lambda child: (-child.frequency, child.content))
    return tuple(_view(child, depth - 1, tick) for child in children)


def _view(node: Node, depth: int, tick: int) -> TreeNode:
    return TreeNode(
        key=node.key.hex(),
        content=node.content,
        tokens=node.tokens,
        places=tuple(_name(place) for place, copy in node.copies.items() if copy.held),
        frequency=node.frequency,
        requests_ago=tick - node.last_access,
        locked=node.locks > 0,
        pinned=node.pins > 0,
        children=_children(node, depth, tick),
        hidden=0 if depth else len(node.children),
    )


def _name(place: Place) -> str:
    return place.tier.value if place.instance is None else f"{place.tier.value}@{place.instance}"
