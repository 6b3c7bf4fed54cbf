"""The integrity check: re-derives every total, link and rule of the knowledge tree from its nodes."""

from __future__ import annotations

from collections import Counter

from cachectl.nodes.keys import child_key
from cachectl.nodes.node import Copy, Node
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import pages_spanned


def check_integrity(tree: KnowledgeTree) -> None:
    """Assert every total, link and rule of the tree. O(nodes), so for tests."""
    attached = _attached(tree)
    assert {node.key: node for node in attached} == tree.registry.nodes
    for node in attached:
        assert node.parent is not None
        assert node.key == child_key(node.parent.key, node.content)
        assert node.prefix_tokens == node.parent.prefix_tokens + node.parent.tokens
        pages = pages_spanned(node.prefix_tokens, node.tokens, tree.page_tokens)
        assert node.room == len(pages) * tree.page_tokens
        assert not node.detached
        assert node.copies, "a node without a copy is kept"
    for node in tree.registry.detached.values():
        assert node.detached
        assert node.locks, "a deleted node outlived its plans"
    everyone = [*attached, *tree.registry.detached.values()]
    _check_copies(tree, everyone)
    _check_locks(tree, everyone)
    _check_pins(attached)
    _check_contents(tree, attached)


def _attached(tree: KnowledgeTree) -> list[Node]:
    nodes: list[Node] = []
    for namespace, root in tree.registry.roots.items():
        assert root.content == namespace
        nodes += root.children
    for node in nodes:
        for child in node.children:
            assert child.parent is node
            nodes.append(child)
    return nodes


def _check_copies(tree: KnowledgeTree, nodes: list[Node]) -> None:
    reserved = {id(copy) for grant in tree.grants.open.values() for copy in grant.reserved}
    written = {id(copy) for batch in tree.tiers.under_way for copy in batch.writes}
    written |= {id(tree.tiers.pending_moves.target(move)) for move in tree.tiers.pending_moves}
    for gpu in tree.tiers.gpus.values():
        assert gpu.slower is tree.tiers.locations[gpu.location].host
    for cache in tree.tiers:
        copies = [copy for node in nodes if (copy := node.copy_in(cache)) is not None]
        assert cache.used == sum(copy.node.room for copy in copies)
        assert cache.copies == len(copies)
        assert cache.pinned_tokens == sum(copy.node.room for copy in copies if copy.node.pins)
        below: Counter[Node] = Counter()
        for copy in copies:
            assert copy.node.parent is not None
            below[copy.node.parent] += 1
            assert copy.held or copy.condemned or id(copy) in reserved, "room is reserved by no grant"
            assert not copy.condemned or (0 < copy.users <= copy.node.locks), "a copy outlived the plans that used it"
            assert not (copy.condemned and copy.held)
            if copy.writer is not None and copy.held and not copy.node.detached:
                assert cache.instance is None, "a GPU's copy is written by another instance"
                assert copy.writer == "" or copy.writer in tree.tiers.gpus, "a copy waits for a removed instance"
                assert id(copy) in written, "nothing will confirm a copy"
            _check_support(copy)
        for node in nodes:
            assert node.below.get(cache, 0) == below[node]
        cache.check_integrity()
        _check_pages(cache, copies)
        for copy in copies:
            node = copy.node
            free = copy.held and not (copy.writer or node.locks or node.pins or node.detached or below[node])
            assert copy.ticket or not free, "an evictable leaf is not in the eviction order"


def _check_pages(cache: TierCache, copies: list[Copy]) -> None:
    handed_out = [copy.pages for copy in copies if copy.pages is not None]
    if cache.allocator is None:
        assert not handed_out
        return
    assert len(handed_out) == len(copies), "a copy has no pages"
    assert all(
        len(copy.pages.numbers) * cache.allocator.page_tokens == copy.node.room
        for copy in copies
        if copy.pages is not None
    )
    cache.allocator.check_integrity(handed_out)


def _check_support(copy: Copy) -> None:
    """Assert that a parent's copy supports this one."""
    node, parent = copy.node, copy.node.parent
    assert parent is not None
    if parent.parent is None or node.detached or copy.condemned:
        return
    assert any((above.held or not copy.held) and above.cache.reaches(copy.cache) for above in parent.copies), (
        "a copy's parent does not support it"
    )


def _check_locks(tree: KnowledgeTree, nodes: list[Node]) -> None:
    locks = Counter(node for grant in tree.grants.open.values() for node in grant.locked)
    for node in nodes:
        assert node.locks == locks[node]
        assert not node.locks or node.parent is None or node.parent.parent is None or node.parent.locks
    for grant in tree.grants.open.values():
        assert not grant.completed


def _check_pins(nodes: list[Node]) -> None:
    for node in nodes:
        assert node.pins >= max((child.pins for child in node.children), default=0)


def _check_contents(tree: KnowledgeTree, nodes: list[Node]) -> None:
    by_content: dict[str, set[Node]] = {}
    for node in nodes:
        by_content.setdefault(node.content, set()).add(node)
    assert by_content == {content: set(tree.registry.nodes_of(content)) for content in tree.registry.by_content}
