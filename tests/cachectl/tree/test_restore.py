"""A lost controller's tree is rebuilt from what the tiers say they hold, and operators see it as it is.

Documents are letters here and paths are words; each document has one token.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from cachectl.tree.view import tree_view
from protocol.cache import RestoreResult, TierStats, TreeNode, TreeView
from protocol.errors import InvalidRequest, UnknownInstance
from protocol.kv import HeldNode, Move, ResidencyReport
from protocol.tiers import Tier

TENANT = "tenant"
GPU, HOST, DISK = Tier
WHOLE = 99
"""Deeper than any tree here."""


def tree_of(gpu=10, host=10, disk=10, policy="LRU", instances=("one", "two")) -> KnowledgeTree:
    policy = create_policy(policy, Lookahead())
    return KnowledgeTree(policy, Capacities(gpu, host, disk), instances, lambda cached, new: float(new))


def begin(tree, path, instance="one", namespace=TENANT, pinned=0) -> Grant:
    documents = [PathDocument(content, 1) for content in path]
    query_id = f"query {tree.grants.tick}"
    return tree.grants.admit(query_id, namespace, documents, path_keys(namespace, path), 0, instance, 0.0, pinned)


def ask(tree, path, instance="one", namespace=TENANT, pinned=0) -> Grant:
    grant = begin(tree, path, instance, namespace, pinned)
    tree.grants.complete(grant, kept=True)
    return grant


def found(tree, path, instance="one", namespace=TENANT) -> list[Tier]:
    return [copy.cache.tier for copy in tree.lookup.match(namespace, path, instance)]


def held(path, tokens=1, namespace=TENANT) -> HeldNode:
    return HeldNode(namespace, tuple(path), tokens)


def report(tier, *paths, instance=None) -> ResidencyReport:
    return ResidencyReport(tier, tuple(held(path) for path in paths), instance)


def drop(path, tier, instance=None) -> Move:
    return Move(path_keys(TENANT, path)[-1].hex(), 1, tier, None, instance)


def orders(tree, instance="one") -> Counter[Move]:
    """What waits for an instance to be carried out; a request for nothing collects it."""
    return Counter(ask(tree, "", instance).moves)


def reports_of(tree) -> list[ResidencyReport]:
    """What the caches of a tree would report if they held just what it believes."""
    reports = []
    for cache in tree.tiers:
        nodes = [node for node in tree.registry.nodes.values() if cache in node.copies and node.copies[cache].held]
        of_path = [
            HeldNode(node.root.content, tuple(above.content for above in node.path), node.tokens) for node in nodes
        ]
        reports.append(ResidencyReport(cache.tier, tuple(of_path), cache.instance))
    return reports


# Restoring


def test_each_instance_finds_what_its_tiers_reported():
    tree = tree_of()
    result = restore(
        tree,
        [
            report(GPU, "a", "ab", instance="one"),
            report(GPU, "a", instance="two"),
            report(HOST, "c", "cd"),
            report(DISK, "cde"),
        ],
    )
    assert result == RestoreResult(restored=6, refused=0)
    check_integrity(tree)
    assert found(tree, "ab", "one") == [GPU, GPU]
    assert found(tree, "ab", "two") == [GPU]
    assert found(tree, "cde", "one") == found(tree, "cde", "two") == [HOST, HOST, DISK]
    assert [cache.used for cache in tree.tiers] == [2, 1, 2, 1]


def test_namespaces_are_restored_apart():
    tree = tree_of()
    restore(tree, [ResidencyReport(HOST, (held("a", namespace="x"), held("b", namespace="y")))])
    assert [found(tree, path, namespace=namespace) for path in "ab" for namespace in "xy"] == [[HOST], [], [], [HOST]]


def test_what_is_restored_is_evicted_and_swapped_like_anything_else():
    tree = tree_of(gpu=1)
    restore(tree, [report(GPU, "a", instance="one")])
    key = path_keys(TENANT, "a")[-1].hex()
    assert ask(tree, "b").moves == [Move(key, 1, GPU, HOST, "one")]
    check_integrity(tree)


def test_upper_nodes_come_first_whatever_the_order_of_the_report():
    tree = tree_of()
    assert restore(tree, [report(HOST, "abc", "ab", "a")]) == RestoreResult(3, 0)
    assert found(tree, "abc") == [HOST] * 3


def test_faster_tiers_come_first_whatever_the_order_of_the_reports():
    # In host b stands on a in the GPU, and on disk c stands on b in host.
    tree = tree_of()
    reports = [report(DISK, "abc"), report(HOST, "ab"), report(GPU, "a", instance="two")]
    assert restore(tree, reports) == RestoreResult(3, 0)
    assert found(tree, "abc", "two") == [GPU, HOST, DISK]
    assert found(tree, "abc", "one") == []
    check_integrity(tree)


@pytest.mark.parametrize(
    ("reports", "refused"),
    [
        ([report(HOST, "ab")], "ab"),
        ([report(HOST, "a", "abc")], "abc"),
        ([report(DISK, "a"), report(HOST, "ab")], "ab"),
        ([report(HOST, "a"), report(GPU, "ab", instance="one")], "ab"),
        ([report(GPU, "a", instance="one"), report(GPU, "ab", instance="two")], "ab"),
    ],
)
def test_what_has_no_parent_to_stand_on_is_refused(reports, refused):
    tree = tree_of()
    copies = sum(len(report.nodes) for report in reports)
    assert restore(tree, reports) == RestoreResult(copies - 1, 1)
    assert path_keys(TENANT, refused)[-1] not in tree.registry.nodes
    check_integrity(tree)


def test_what_has_no_room_is_refused():
    tree = tree_of(gpu=2, host=1)
    assert restore(tree, [report(GPU, "abc", "ab", "a", instance="one")]) == RestoreResult(2, 1)
    assert restore(tree, [report(HOST, "x", "y")]) == RestoreResult(1, 1)
    assert found(tree, "abc") == [GPU, GPU]
    check_integrity(tree)


def test_the_baseline_refuses_everything():
    tree = tree_of(policy="NONE")
    assert restore(tree, [report(HOST, "a"), report(GPU, "b", instance="one")]) == RestoreResult(0, 2)
    assert not tree.registry.nodes
    assert not tree.registry.roots


@pytest.mark.parametrize(
    ("reported", "dropped"),
    [
        (report(HOST, "b", "c"), drop("c", HOST)),
        (report(HOST, "bc"), drop("bc", HOST)),
        (report(GPU, "bc", instance="two"), drop("bc", GPU, "two")),
    ],
    ids=["no room", "no parent in a shared tier", "no parent in a GPU"],
)
def test_what_is_refused_is_ordered_to_be_dropped(reported, dropped):
    tree = tree_of(gpu=1, host=1)
    assert restore(tree, [reported]).refused == 1
    assert orders(tree, "two") == Counter([dropped])
    assert orders(tree, "one") == Counter()


def test_a_refused_copy_of_a_known_document_is_dropped_from_its_tier_alone():
    tree = tree_of(host=1)
    ask(tree, "a")
    restore(tree, [report(HOST, "b", "a")])
    assert found(tree, "a") == [GPU]
    assert orders(tree) == Counter([drop("a", HOST)])


def test_what_the_tree_knows_is_left_as_it_is():
    tree = tree_of()
    ask(tree, "ab")
    ask(tree, "ab")
    before = tree_view(tree, WHOLE, 1000)
    assert restore(tree, [report(GPU, "a", "ab", instance="one")]) == RestoreResult(2, 0)
    assert tree_view(tree, WHOLE, 1000) == before
    check_integrity(tree)


def test_what_a_plan_is_about_to_save_is_not_restored_in_its_place():
    tree = tree_of()
    running = begin(tree, "a")
    assert restore(tree, [report(GPU, "a", instance="one")]) == RestoreResult(0, 1)
    assert found(tree, "a") == []
    tree.grants.complete(running, kept=True)
    assert found(tree, "a") == [GPU]
    assert orders(tree) == Counter()
    check_integrity(tree)


def test_a_copy_that_is_about_to_be_dropped_is_not_restored():
    tree = tree_of(gpu=0)
    ask(tree, "a")
    tree.delete("a")
    restore(tree, [report(HOST, "a")])
    assert (found(tree, "a") == [HOST]) != (drop("a", HOST) in orders(tree))


def test_a_deleted_document_that_a_plan_still_uses_is_not_restored_and_not_dropped_under_it():
    tree = tree_of()
    ask(tree, "a")
    running = begin(tree, "a")
    tree.delete("a")
    assert restore(tree, [report(GPU, "a", instance="one")]) == RestoreResult(0, 1)
    assert orders(tree) == Counter()
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert orders(tree) == Counter([drop("a", GPU, "one")])


def test_a_restored_document_that_is_in_demand_is_worth_keeping():
    # a is used five times and b once, for a second a token each.
    tree = tree_of(gpu=2, host=0, disk=0, policy="PGDSF")
    restore(tree, [report(GPU, "a", instance="one")])
    for path in ["a"] * 5 + ["b", "c"]:
        ask(tree, path)
    assert found(tree, "a") == [GPU]


GOOD = report(GPU, "a", instance="one")


@pytest.mark.parametrize(
    ("bad", "error", "param"),
    [
        (report(GPU, "b", instance="three"), UnknownInstance, None),
        (report(GPU, "b"), UnknownInstance, None),
        (report(HOST, "b", instance="one"), InvalidRequest, "instance"),
        (report(DISK, instance="two"), InvalidRequest, "instance"),
        (ResidencyReport(HOST, (held("b"), held("c", tokens=-1))), InvalidRequest, "tokens"),
        (ResidencyReport(HOST, (held("b"), held("c", tokens=0))), InvalidRequest, "tokens"),
        (ResidencyReport(HOST, (held("b"), held(""))), InvalidRequest, "path"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_report_that_cannot_be_true_refuses_them_all(bad, error, param, first):
    tree = tree_of()
    ask(tree, "xy")
    begin(tree, "xz")
    before = tree_view(tree, WHOLE, 1000)
    with pytest.raises(error) as refused:
        restore(tree, [bad, GOOD] if first else [GOOD, bad])
    assert type(refused.value) is error
    assert refused.value.param == param
    assert tree_view(tree, WHOLE, 1000) == before
    check_integrity(tree)


traces = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map("".join),
        st.sampled_from(["one", "two"]),
        st.sampled_from("xy"),
    ),
    max_size=25,
)
capacities = st.tuples(*[st.integers(0, 6)] * 3)


@given(st.sampled_from(policy_names()), capacities, traces, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_rebuilt_tree_finds_what_the_lost_one_found(policy, sizes, trace, random):
    lost, rebuilt = (tree_of(*sizes, policy=policy) for _ in range(2))
    for path, instance, namespace in trace:
        ask(lost, path, instance, namespace)
    reports = reports_of(lost)
    random.shuffle(reports)
    assert restore(rebuilt, reports) == RestoreResult(sum(len(report.nodes) for report in reports), 0)
    check_integrity(rebuilt)
    for path, _, namespace in trace:
        for instance in ("one", "two"):
            assert found(rebuilt, path, instance, namespace) == found(lost, path, instance, namespace)
    for path, instance, namespace in trace:
        ask(rebuilt, path, instance, namespace)
        check_integrity(rebuilt)


@given(capacities, capacities, traces, st.data())
@settings(max_examples=150, deadline=None)
def test_tiers_that_lost_some_and_shrank_hold_what_the_rebuilt_tree_believes_once_its_orders_are_carried_out(
    sizes, smaller, trace, data
):
    lost, rebuilt = tree_of(*sizes), tree_of(*smaller)
    for path, instance, namespace in trace:
        ask(lost, path, instance, namespace)
    reports, held_there = [], set()
    for report in reports_of(lost):
        nodes = tuple(node for node in report.nodes if not data.draw(st.sampled_from([False, False, True]), "lost"))
        reports.append(ResidencyReport(report.tier, nodes, report.instance))
        held_there |= {(report.tier, report.instance, path_keys(node.namespace, node.path)[-1].hex()) for node in nodes}
    restore(rebuilt, reports)
    check_integrity(rebuilt)
    for instance in ("one", "two"):
        for order in begin(rebuilt, "", instance).moves:
            assert order.target is None
            held_there.remove((order.source, order.instance, order.node))
    assert held_there == {
        (cache.tier, cache.instance, node.key.hex())
        for node in rebuilt.registry.nodes.values()
        for cache in node.copies
    }


# Looking


def node(path, *caches, children=(), frequency=1.0, requests_ago=0, locked=False, pinned=False, hidden=0) -> TreeNode:
    key = path_keys(TENANT, path)[-1].hex()
    return TreeNode(key, path[-1], 1, caches, frequency, requests_ago, locked, pinned, tuple(children), hidden)


def test_an_empty_tree_shows_its_tiers():
    assert tree_view(tree_of(2, 3, 0, instances=["one"]), WHOLE, 1000) == TreeView(
        {}, 0, (TierStats(GPU, "one", 2, 0, 0, 0, 0), TierStats(HOST, None, 3, 0, 0, 0, 0))
    )


def test_the_view_ends_at_its_depth_and_counts_what_it_hides():
    tree = tree_of()
    for path in ("abc", "abd", "ae"):
        ask(tree, path)
    b = node("ab", "gpu@one", frequency=2.0, requests_ago=1, hidden=2)
    e = node("ae", "gpu@one")
    assert tree_view(tree, 2, 1000).namespaces == {TENANT: (node("a", "gpu@one", frequency=3.0, children=[b, e]),)}
    assert tree_view(tree, 1, 1000).namespaces == {TENANT: (node("a", "gpu@one", frequency=3.0, hidden=2),)}
    assert tree_view(tree, 0, 1000).namespaces == {TENANT: ()}
    assert [tree_view(tree, depth, 1000).nodes for depth in (0, 1, 2, WHOLE)] == [5] * 4


def test_the_view_has_the_most_used_of_those_whose_parents_it_has():
    tree = tree_of()
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


def test_the_view_names_the_places_of_each_document_and_leaves_out_what_is_only_promised():
    tree = tree_of(gpu=1, host=2)
    for path, instance in (("a", "one"), ("b", "one"), ("a", "two"), ("a", "one")):
        ask(tree, path, instance)
    begin(tree, "c", "two")
    caches = {shown.content: set(shown.places) for shown in tree_view(tree, 1, 1000).namespaces[TENANT]}
    assert caches == {"a": {"gpu@one", "host"}, "b": {"host"}, "c": set()}


def test_the_view_lists_the_most_used_first():
    tree = tree_of()
    for path in ("c", "a", "b", "b"):
        ask(tree, path)
    assert [shown.content for shown in tree_view(tree, 1, 1000).namespaces[TENANT]] == ["b", "a", "c"]
    assert [shown.requests_ago for shown in tree_view(tree, 1, 1000).namespaces[TENANT]] == [0, 2, 3]


def test_the_view_lists_namespaces_by_name():
    tree = tree_of()
    for namespace in "zyx":
        ask(tree, "a", namespace=namespace)
    assert list(tree_view(tree, 1, 1000).namespaces) == ["x", "y", "z"]


def test_the_view_shows_what_is_in_use_and_what_is_pinned():
    tree = tree_of()
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


def test_the_view_shows_what_each_place_holds_and_what_has_left_it():
    tree = tree_of(2, 4, 0)
    for path in ("ab", "c"):
        ask(tree, path)
    tree.pin(TENANT, "a")
    assert tree_view(tree, 0, 1000).tiers == (
        TierStats(GPU, "one", capacity_tokens=2, used_tokens=2, pinned_tokens=1, nodes=2, evictions=1),
        TierStats(GPU, "two", capacity_tokens=2, used_tokens=0, pinned_tokens=0, nodes=0, evictions=0),
        TierStats(HOST, None, capacity_tokens=4, used_tokens=1, pinned_tokens=0, nodes=1, evictions=0),
    )
