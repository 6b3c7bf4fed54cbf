"""A tree is restored from reports of what the tiers hold."""

from collections import Counter

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import (
    DISK,
    GPU,
    HOST,
    TENANT,
    ask,
    begin,
    dump,
    found,
    linear_cost,
    move,
    take_pending_moves,
    tree_of,
)

from cachectl.nodes.keys import path_keys
from cachectl.policies import policy_names
from cachectl.tree.restore import restore
from protocol.cache import RestoreResult
from protocol.errors import InvalidRequest, UnknownInstance
from protocol.kv import HeldNode, Move, ResidencyReport


def held(path, tokens=1, namespace=TENANT) -> HeldNode:
    return HeldNode(namespace, tuple(path), tokens)


def report(tier, *paths, instance=None) -> ResidencyReport:
    return ResidencyReport(tier, tuple(held(path) for path in paths), instance)


def reports_of(tree) -> list[ResidencyReport]:
    """Reports of exactly the copies that a tree believes in."""
    reports = []
    for cache in tree.tiers:
        nodes = [node for node in tree.registry.nodes.values() if node.copy_in(cache) and node.copy_in(cache).held]
        of_path = [
            HeldNode(node.root.content, tuple(above.content for above in node.path), node.tokens) for node in nodes
        ]
        reports.append(ResidencyReport(cache.tier, tuple(of_path), cache.instance))
    return reports


def test_each_instance_finds_the_reported_copies_it_reaches():
    tree = tree_of(10, 10, 10)
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


def test_namespaces_are_restored_separately():
    tree = tree_of(10, 10, 10)
    restore(tree, [ResidencyReport(HOST, (held("a", namespace="x"), held("b", namespace="y")))])
    assert [found(tree, path, namespace=namespace) for path in "ab" for namespace in "xy"] == [[HOST], [], [], [HOST]]


def test_restored_nodes_are_evicted_and_swapped_like_others():
    tree = tree_of(1, 10, 10)
    restore(tree, [report(GPU, "a", instance="one")])
    key = path_keys(TENANT, "a")[-1].hex()
    assert ask(tree, "b").moves == [Move(key, 1, GPU, HOST, "one")]
    check_integrity(tree)


def test_parents_are_restored_first_in_any_report_order():
    tree = tree_of(10, 10, 10)
    assert restore(tree, [report(HOST, "abc", "ab", "a")]) == RestoreResult(3, 0)
    assert found(tree, "abc") == [HOST] * 3


def test_faster_tiers_are_restored_first_in_any_report_order():
    # a in the GPU supports b in host memory, which supports c on disk.
    tree = tree_of(10, 10, 10)
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
def test_copies_without_support_are_refused(reports, refused):
    tree = tree_of(10, 10, 10)
    copies = sum(len(report.nodes) for report in reports)
    assert restore(tree, reports) == RestoreResult(copies - 1, 1)
    assert path_keys(TENANT, refused)[-1] not in tree.registry.nodes
    check_integrity(tree)


def test_copies_without_room_are_refused():
    tree = tree_of(2, 1, 10)
    assert restore(tree, [report(GPU, "abc", "ab", "a", instance="one")]) == RestoreResult(2, 1)
    assert restore(tree, [report(HOST, "x", "y")]) == RestoreResult(1, 1)
    assert found(tree, "abc") == [GPU, GPU]
    check_integrity(tree)


def test_the_none_policy_refuses_everything():
    tree = tree_of(10, 10, 10, policy="NONE")
    assert restore(tree, [report(HOST, "a"), report(GPU, "b", instance="one")]) == RestoreResult(0, 2)
    assert not tree.registry.nodes
    assert not tree.registry.roots


@pytest.mark.parametrize(
    ("reported", "dropped"),
    [
        (report(HOST, "b", "c"), move("c", HOST, None)),
        (report(HOST, "bc"), move("bc", HOST, None)),
        (report(GPU, "bc", instance="two"), move("bc", GPU, None, "two")),
    ],
    ids=["no room", "no parent in a shared tier", "no parent in a GPU"],
)
def test_refused_copies_are_dropped(reported, dropped):
    tree = tree_of(1, 1, 10)
    assert restore(tree, [reported]).refused == 1
    assert Counter(take_pending_moves(tree, "two")) == Counter([dropped])
    assert Counter(take_pending_moves(tree, "one")) == Counter()


def test_a_refused_copy_of_a_known_document_leaves_only_its_own_tier():
    tree = tree_of(10, 1, 10)
    ask(tree, "a")
    restore(tree, [report(HOST, "b", "a")])
    assert found(tree, "a") == [GPU]
    assert Counter(take_pending_moves(tree)) == Counter([move("a", HOST, None)])


def test_restoring_known_copies_changes_nothing():
    tree = tree_of(10, 10, 10)
    ask(tree, "ab")
    ask(tree, "ab")
    before = dump(tree)
    assert restore(tree, [report(GPU, "a", "ab", instance="one")]) == RestoreResult(2, 0)
    assert dump(tree) == before
    check_integrity(tree)


def test_a_copy_that_a_plan_will_save_is_not_restored():
    tree = tree_of(10, 10, 10)
    running = begin(tree, "a")
    assert restore(tree, [report(GPU, "a", instance="one")]) == RestoreResult(0, 1)
    assert found(tree, "a") == []
    tree.grants.complete(running, kept=True)
    assert found(tree, "a") == [GPU]
    assert Counter(take_pending_moves(tree)) == Counter()
    check_integrity(tree)


def test_a_copy_with_a_pending_drop_is_not_restored():
    tree = tree_of(0, 10, 10)
    ask(tree, "a")
    tree.delete("a")
    restore(tree, [report(HOST, "a")])
    assert (found(tree, "a") == [HOST]) != (move("a", HOST, None) in take_pending_moves(tree))


def test_a_deleted_document_in_use_is_neither_restored_nor_dropped():
    tree = tree_of(10, 10, 10)
    ask(tree, "a")
    running = begin(tree, "a")
    tree.delete("a")
    assert restore(tree, [report(GPU, "a", instance="one")]) == RestoreResult(0, 1)
    assert Counter(take_pending_moves(tree)) == Counter()
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert Counter(take_pending_moves(tree)) == Counter([move("a", GPU, None, "one")])


def test_a_much_used_restored_document_is_kept():
    # a is used five times and b once. Each costs one second to compute.
    tree = tree_of(2, policy="PGDSF", cost=linear_cost)
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
def test_one_invalid_report_refuses_all_reports(bad, error, param, first):
    tree = tree_of(10, 10, 10)
    ask(tree, "xy")
    begin(tree, "xz")
    before = dump(tree)
    with pytest.raises(error) as refused:
        restore(tree, [bad, GOOD] if first else [GOOD, bad])
    assert type(refused.value) is error
    assert refused.value.param == param
    assert dump(tree) == before
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
@settings(max_examples=examples(150), deadline=None)
def test_a_restored_tree_finds_what_the_lost_tree_found(policy, sizes, trace, random):
    lost, restored = (tree_of(*sizes, policy=policy) for _ in range(2))
    for path, instance, namespace in trace:
        ask(lost, path, instance, namespace)
    reports = reports_of(lost)
    random.shuffle(reports)
    assert restore(restored, reports) == RestoreResult(sum(len(report.nodes) for report in reports), 0)
    check_integrity(restored)
    for path, _, namespace in trace:
        for instance in ("one", "two"):
            assert found(restored, path, instance, namespace) == found(lost, path, instance, namespace)
    for path, instance, namespace in trace:
        ask(restored, path, instance, namespace)
        check_integrity(restored)


@given(capacities, capacities, traces, st.data())
@settings(max_examples=examples(150), deadline=None)
def test_smaller_tiers_with_losses_match_the_restored_tree_after_its_moves(sizes, smaller, trace, data):
    lost, restored = tree_of(*sizes), tree_of(*smaller)
    for path, instance, namespace in trace:
        ask(lost, path, instance, namespace)
    reports, held_there = [], set()
    for report in reports_of(lost):
        nodes = tuple(node for node in report.nodes if not data.draw(st.sampled_from([False, False, True]), "lost"))
        reports.append(ResidencyReport(report.tier, nodes, report.instance))
        held_there |= {(report.tier, report.instance, path_keys(node.namespace, node.path)[-1].hex()) for node in nodes}
    restore(restored, reports)
    check_integrity(restored)
    for instance in ("one", "two"):
        for pending in begin(restored, "", instance).moves:
            assert pending.target is None
            held_there.remove((pending.source, pending.instance, pending.node))
    assert held_there == {
        (copy.cache.tier, copy.cache.instance, node.key.hex())
        for node in restored.registry.nodes.values()
        for copy in node.copies
    }
