"""The grant book admits plans, reserves room for what they keep, and completes each once."""

import pytest
from controller_integrity import check_integrity
from tree_cases import DISK, GPU, HOST, TENANT, ask, begin, dump, found, key, saves, tree_of

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.tree.restore import restore
from protocol.errors import InvalidRequest, UnknownInstance, UnknownPlan
from protocol.kv import HeldNode, ResidencyReport


def test_a_grant_names_the_source_and_the_kept_tier_of_each_document():
    tree = tree_of(2, 2)
    for path in ("ab", "C"):
        ask(tree, path)
    grant = begin(tree, "abD")
    # C leaves the GPU, and a and b are loaded into it from host memory. No tier has room for D: the plan itself uses
    # what is in the GPU, and host memory holds a and b.
    assert [(step.tokens, step.source, step.kept) for step in grant.documents] == [
        (1, HOST, GPU),
        (1, HOST, GPU),
        (2, None, None),
    ]
    assert [bytes.fromhex(step.key) for step in grant.documents] == path_keys(TENANT, "abD")


def test_documents_that_do_not_fit_the_gpu_are_kept_in_the_next_tier_with_room():
    tree = tree_of(1, 1, 2)
    assert [step.kept for step in ask(tree, "abcde").documents] == [GPU, HOST, DISK, DISK, None]


def test_no_document_is_kept_behind_one_that_is_not_kept():
    tree = tree_of(1)
    assert [step.kept for step in ask(tree, "Ab").documents] == [None, None]
    assert not tree.registry.nodes


def test_documents_are_not_found_before_their_plan_is_complete():
    tree = tree_of(2, 2)
    grant = begin(tree, "ab")
    assert tree.tiers.gpu("one").used == 2
    assert found(tree, "ab") == []
    tree.grants.complete(grant, kept=True)
    assert found(tree, "ab") == [GPU, GPU]


def test_two_plans_that_compute_the_same_documents_keep_them_in_different_tiers():
    tree = tree_of(2, 2)
    first, second = begin(tree, "ab"), begin(tree, "ab")
    assert [step.source for step in second.documents] == [None, None]
    assert [step.kept for step in first.documents] == [GPU, GPU]
    assert [step.kept for step in second.documents] == [HOST, HOST]
    tree.grants.complete(second, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == [HOST, HOST]
    tree.grants.complete(first, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]


@pytest.mark.parametrize("kept", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_each_of_two_plans_for_the_same_documents_keeps_only_its_own_copies(kept, order):
    tree = tree_of(2, 2)
    grants = [begin(tree, "ab"), begin(tree, "ab")]
    for index in order:
        tree.grants.complete(grants[index], kept[index])
        check_integrity(tree)
    assert found(tree, "ab") == [tier for tier, is_kept in zip((GPU, HOST), kept, strict=True) if is_kept] * 2


def test_a_third_plan_keeps_nothing_if_both_tiers_are_reserved():
    tree = tree_of(2, 2)
    grants = [begin(tree, "ab") for _ in range(3)]
    assert [step.kept for step in grants[2].documents] == [None, None]
    for grant in grants:
        tree.grants.complete(grant, kept=True)
    check_integrity(tree)


def test_a_failed_plan_releases_its_room():
    tree = tree_of(2, 2)
    ask(tree, "a")
    before = [cache.used for cache in tree.tiers]
    tree.grants.complete(begin(tree, "aBc"), kept=False)
    check_integrity(tree)
    assert [cache.used for cache in tree.tiers] == before
    assert found(tree, "aBc") == [GPU]
    assert not tree.grants.open


def test_a_failed_plan_leaves_the_copy_that_it_was_to_promote():
    tree = tree_of(1, 2)
    for path in "ab":
        ask(tree, path)
    grant = begin(tree, "a")
    assert (grant.documents[0].source, grant.documents[0].kept) == (HOST, GPU)
    tree.grants.complete(grant, kept=False)
    check_integrity(tree)
    assert found(tree, "a") == [HOST]
    assert tree.tiers.gpu("one").used == 0


def test_documents_in_use_are_not_evicted_until_their_plan_is_complete():
    tree = tree_of(2)
    ask(tree, "ab")
    running = begin(tree, "ab")
    assert [step.kept for step in ask(tree, "C").documents] == [None]
    assert found(tree, "ab") == [GPU, GPU]
    tree.grants.complete(running, kept=True)
    assert [step.kept for step in ask(tree, "C").documents] == [GPU]


def test_the_whole_path_is_locked_before_room_is_made_for_its_end():
    # C needs two tokens. b has the lowest priority, but is on the path. d alone is not enough, so d stays too.
    tree = tree_of(3, policy="GDSF")
    for path in ("ab", "d", "d"):
        ask(tree, path)
    assert ask(tree, "abC").documents[2].kept is None
    assert found(tree, "ab") == [GPU, GPU]
    assert found(tree, "d") == [GPU]


def test_a_plan_saves_only_copies_with_reserved_room():
    # Instance one has a in its GPU, and b behind it in host memory. Two finds neither, computes both, and has no room
    # in its GPU. Host memory takes a. It holds b already, and another plan may be loading that copy.
    tree = tree_of(1, 2)
    ask(tree, "ab", "one")
    blocking = begin(tree, "c", "two")
    grant = begin(tree, "ab", "two")
    assert [step.source for step in grant.documents] == [None, None]
    assert saves(grant) == {(copy.node.key, copy.cache.tier) for copy in grant.reserved}
    for running in (blocking, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "ab", "two") == [HOST, HOST]


@pytest.mark.parametrize("completed", [True, False])
def test_a_document_of_another_length_is_neither_found_nor_kept(completed):
    tree = tree_of(9)
    running = begin(tree, "ab")
    if completed:
        tree.grants.complete(running, kept=True)
    documents = [PathDocument("a", 1), PathDocument("b", 3), PathDocument("c", 1)]
    other = tree.grants.admit("q", TENANT, documents, path_keys(TENANT, "abc"), 0, "one", 0.0)
    assert [step.source for step in other.documents] == [GPU if completed else None, None, None]
    assert [step.kept for step in other.documents] == [GPU if completed else None, None, None]
    tree.grants.complete(other, kept=True)
    check_integrity(tree)
    if not completed:
        tree.grants.complete(running, kept=True)
    assert [copy.node.tokens for copy in tree.lookup.match(TENANT, "abc", "one")] == [1, 1]


def test_a_prefilled_plan_is_found_and_stays_locked():
    tree = tree_of(2)
    running = begin(tree, "ab")
    assert tree.grants.prefilled(running) == key("a")
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]
    assert [step.kept for step in ask(tree, "C").documents] == [None]
    assert tree.grants.prefilled(running) is None
    # The prefill is kept even if the answer fails.
    assert tree.grants.complete(running, kept=False) == []
    check_integrity(tree)
    assert found(tree, "ab") == [GPU, GPU]
    assert [step.kept for step in ask(tree, "C").documents] == [GPU]


def test_completing_a_plan_keeps_it_without_a_prefilled_event():
    tree = tree_of(4)
    ask(tree, "a")
    running = begin(tree, "abc")
    assert tree.grants.complete(running, kept=True) == [key("ab")]
    assert found(tree, "abc") == [GPU] * 3


# Refusals


def test_a_plan_completes_once():
    tree = tree_of(2, 2)
    grant = ask(tree, "ab")
    begin(tree, "a")
    before = dump(tree)
    for end in (
        tree.grants.prefilled,
        lambda grant: tree.grants.complete(grant, True),
        lambda grant: tree.grants.complete(grant, False),
    ):
        with pytest.raises(UnknownPlan, match="query 0"):
            end(grant)
    assert dump(tree) == before


def test_a_query_holds_one_plan_at_a_time():
    tree = tree_of(2)
    documents, keys = [PathDocument("a", 1)], path_keys(TENANT, "a")
    tree.grants.admit("q", TENANT, documents, keys, 0, "one", 0.0)
    before = dump(tree)
    with pytest.raises(InvalidRequest, match="q has a plan already"):
        tree.grants.admit("q", TENANT, documents, keys, 0, "one", 0.0)
    assert dump(tree) == before


def test_an_unknown_instance_is_refused_and_changes_nothing():
    tree = tree_of(2, 2)
    ask(tree, "ab")
    begin(tree, "aC")
    before = dump(tree)
    for attempt in (
        lambda: tree.lookup.match(TENANT, "ab", "three"),
        lambda: begin(tree, "xy", "three"),
        lambda: tree.remove_instance("three"),
        lambda: restore(tree, [ResidencyReport(GPU, (HeldNode(TENANT, ("z",), 1),), "three")]),
        lambda: restore(tree, [ResidencyReport(GPU, (HeldNode(TENANT, ("z",), 1),))]),
    ):
        with pytest.raises(UnknownInstance):
            attempt()
    assert dump(tree) == before
