"""The view of a tree shows its most used nodes and the tiers' statistics."""

from tree_cases import GPU, HOST, TENANT, ask, begin, tree_of

from cachectl.nodes.keys import path_keys
from cachectl.tree.view import tree_view
from protocol.cache import TierStats, TreeNode, TreeView

WHOLE = 99
"""Deeper than any tree in these tests."""


def node(path, *caches, children=(), frequency=1.0, requests_ago=0, locked=False, pinned=False, hidden=0) -> TreeNode:
    key = path_keys(TENANT, path)[-1].hex()
    return TreeNode(key, path[-1], 1, caches, frequency, requests_ago, locked, pinned, tuple(children), hidden)


def test_an_empty_tree_shows_its_tiers():
    assert tree_view(tree_of(2, 3, 0, instances=["one"]), WHOLE, 1000) == TreeView(
        {}, 0, (TierStats(GPU, "one", 2, 0, 0, 0, 0, "gpu@one"), TierStats(HOST, None, 3, 0, 0, 0, 0, "host"))
    )


def test_the_view_ends_at_its_depth_and_counts_hidden_nodes():
    tree = tree_of(10, 10, 10)
    for path in ("abc", "abd", "ae"):
        ask(tree, path)
    b = node("ab", "gpu@one", frequency=2.0, requests_ago=1, hidden=2)
    e = node("ae", "gpu@one")
    assert tree_view(tree, 2, 1000).namespaces == {TENANT: (node("a", "gpu@one", frequency=3.0, children=[b, e]),)}
    assert tree_view(tree, 1, 1000).namespaces == {TENANT: (node("a", "gpu@one", frequency=3.0, hidden=2),)}
    assert tree_view(tree, 0, 1000).namespaces == {TENANT: ()}
    assert [tree_view(tree, depth, 1000).nodes for depth in (0, 1, 2, WHOLE)] == [5] * 4


def test_the_view_shows_the_most_used_nodes_below_shown_parents():
    tree = tree_of(10, 10, 10)
    for path in ("abc", "abd", "abd", "ae", "x", "x"):
        ask(tree, path)
    shown = [_keys(tree_view(tree, WHOLE, limit).namespaces[TENANT]) for limit in range(8)]
    order = ["a", "ab", "abd", "x", "abc", "ae"]
    assert shown == [sorted(path_keys(TENANT, path)[-1].hex() for path in order[:limit]) for limit in range(8)]
    (a,) = tree_view(tree, WHOLE, 3).namespaces[TENANT]
    assert (a.hidden, a.children[0].hidden) == (1, 1)


def _keys(nodes) -> list[str]:
    nodes = list(nodes)
    for shown in nodes:
        nodes += shown.children
    return sorted(shown.key for shown in nodes)


def test_the_view_names_each_nodes_tiers_without_reserved_copies():
    tree = tree_of(1, 2, 10)
    for path, instance in (("a", "one"), ("b", "one"), ("a", "two"), ("a", "one")):
        ask(tree, path, instance)
    begin(tree, "c", "two")
    caches = {shown.content: set(shown.places) for shown in tree_view(tree, 1, 1000).namespaces[TENANT]}
    assert caches == {"a": {"gpu@one", "host"}, "b": {"host"}, "c": set()}


def test_the_view_lists_the_most_used_first():
    tree = tree_of(10, 10, 10)
    for path in ("c", "a", "b", "b"):
        ask(tree, path)
    assert [shown.content for shown in tree_view(tree, 1, 1000).namespaces[TENANT]] == ["b", "a", "c"]
    assert [shown.requests_ago for shown in tree_view(tree, 1, 1000).namespaces[TENANT]] == [0, 2, 3]


def test_the_view_lists_namespaces_by_name():
    tree = tree_of(10, 10, 10)
    for namespace in "zyx":
        ask(tree, "a", namespace=namespace)
    assert list(tree_view(tree, 1, 1000).namespaces) == ["x", "y", "z"]


def test_the_view_shows_locked_and_pinned_nodes():
    tree = tree_of(10, 10, 10)
    for path in ("ab", "ac"):
        ask(tree, path)
    tree.pin(TENANT, "ab")
    begin(tree, "ac")
    (a,) = tree_view(tree, 2, 1000).namespaces[TENANT]
    assert (a.locked, a.pinned) == (True, True)
    assert {child.content: (child.locked, child.pinned) for child in a.children} == {
        "b": (False, True),
        "c": (True, False),
    }


def test_the_view_shows_each_tiers_content_and_evictions():
    tree = tree_of(2, 4, 0)
    for path in ("ab", "c"):
        ask(tree, path)
    tree.pin(TENANT, "a")
    assert tree_view(tree, 0, 1000).tiers == (
        TierStats(GPU, "one", capacity_tokens=2, used_tokens=2, pinned_tokens=1, nodes=2, evictions=1, place="gpu@one"),
        TierStats(GPU, "two", capacity_tokens=2, used_tokens=0, pinned_tokens=0, nodes=0, evictions=0, place="gpu@two"),
        TierStats(HOST, None, capacity_tokens=4, used_tokens=1, pinned_tokens=0, nodes=1, evictions=0, place="host"),
    )


def test_the_view_names_the_machine_of_a_shared_tier_if_there_are_several():
    tree = tree_of(1, 2, instances=["one"], elsewhere=["two"])
    for path in ("a", "b"):
        ask(tree, path, "one")
        ask(tree, path, "two")
    shown = tree_view(tree, 1, 1000)
    assert [tier.place for tier in shown.tiers] == ["gpu@one", "gpu@two", "host@", "host@elsewhere"]
    caches = {node.content: set(node.places) for node in shown.namespaces[TENANT]}
    assert caches == {"a": {"host@", "host@elsewhere"}, "b": {"gpu@one", "gpu@two"}}
