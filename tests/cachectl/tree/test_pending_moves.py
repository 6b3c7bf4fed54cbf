"""Moves reach the tiers, even if their plan fails or no plan takes them along."""

import pytest
from controller_integrity import check_integrity
from tree_cases import (
    DISK,
    GPU,
    HOST,
    TENANT,
    ask,
    begin,
    deliver,
    found,
    key,
    move,
    paged_tree_of,
    take_pending_moves,
)

from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from cachectl.tree.restore import restore
from protocol.errors import ConfigError
from protocol.kv import HeldNode, Pages, Paging, ResidencyReport

PAGE = 2


# Pages


def test_host_memory_needs_as_many_pages_as_its_budget():
    with pytest.raises(ConfigError, match="pages for 6 tokens, not for 8"):
        KnowledgeTree(
            create_policy("LRU", Lookahead()),
            KvStorage(Capacities(0, 8), Paging(2)),
            [],
            TreeCosts(lambda c, n: 1.0),
            arena=PageAllocator(3, 2),
        )


def test_a_budget_counts_whole_pages():
    # b begins in the page in which a ends, so both count that page.
    tree = paged_tree_of(2, page=PAGE)
    assert [step.kept for step in ask(tree, "ab").documents] == [GPU, GPU]
    assert tree.tiers.gpu("one").used == 2 * PAGE
    assert [step.kept for step in ask(tree, "aC").documents] == [GPU, None]


def test_moves_and_plans_name_the_pages_of_host_memory():
    tree = paged_tree_of(1, 2, 2, page=PAGE)
    first, second = Pages((0,), 1), Pages((1,), 2)
    ask(tree, "a")
    assert ask(tree, "b").moves == [move("a", GPU, HOST, "one", pages=first)]
    grant = begin(tree, "a", "two")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(HOST, GPU, first)]
    tree.grants.complete(grant, kept=True)
    assert ask(tree, "c").moves == [move("b", GPU, HOST, "one", pages=second)]
    # b's page in host memory goes to c at once, with a new stamp.
    third = Pages((1,), 3)
    assert ask(tree, "d").moves == [move("b", HOST, DISK, pages=second), move("c", GPU, HOST, "one", pages=third)]
    full = begin(tree, "dE")
    assert [(step.source, step.kept, step.pages) for step in full.documents] == [
        (GPU, GPU, None),
        (None, HOST, Pages((0, 1), 4)),
    ]


def test_a_document_computed_into_host_memory_has_its_pages_in_the_grant():
    tree = paged_tree_of(0, 2, page=PAGE)
    grant = begin(tree, "A")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, HOST, Pages((0,), 1))]
    tree.grants.complete(grant, kept=True)
    tree.delete("A")
    assert take_pending_moves(tree) == [move("A", HOST, None, pages=Pages((0,), 1))]


def test_restored_nodes_keep_their_pages_and_new_stamps_exceed_all_reported():
    tree = paged_tree_of(0, 4, page=PAGE)
    mine, foreign = Pages((2,), 40), Pages((2,), 60)
    nodes = (HeldNode(TENANT, ("a",), 1, mine), HeldNode(TENANT, ("b",), 1, foreign), HeldNode(TENANT, ("c",), 1))
    result = restore(tree, [ResidencyReport(HOST, nodes)])
    check_integrity(tree)
    assert (result.restored, result.refused) == (1, 2)
    [step] = begin(tree, "a").documents
    assert (step.source, step.pages) == (HOST, mine)
    [step] = begin(tree, "d").documents
    assert step.pages == Pages((0,), 61)


def test_a_report_with_other_pages_is_refused():
    tree = paged_tree_of(0, 4, page=PAGE)
    ask(tree, "a")
    assert restore(tree, [ResidencyReport(HOST, (HeldNode(TENANT, ("a",), 1, Pages((3,), 9)),))]).refused == 1
    assert take_pending_moves(tree) == []


# Load or recompute


def test_a_recomputed_document_is_kept_in_the_gpu_beside_its_slower_copy():
    tree = paged_tree_of(2, 4, load_s=5.0)
    for path in ("ab", "cd"):
        ask(tree, path)
    assert found(tree, "ab") == [HOST, HOST]
    grant = ask(tree, "ab")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, GPU, None)] * 2
    assert found(tree, "ab") == [GPU, GPU]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_a_recomputed_document_without_room_stays_in_its_tier():
    tree = paged_tree_of(1, 4, load_s=5.0)
    for path in ("a", "b"):
        ask(tree, path)
    blocking = begin(tree, "b")
    grant = begin(tree, "a")
    assert [(step.source, step.kept) for step in grant.documents] == [(None, None)]
    for running in (blocking, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "a") == [HOST]


# Write-through


def test_write_through_copies_a_prefilled_plan_to_all_slower_tiers():
    tree = paged_tree_of(2, 4, 4, write_through=True)
    running = begin(tree, "ab")
    assert take_pending_moves(tree) == []
    tree.grants.prefilled(running)
    check_integrity(tree)
    a, b = (tree.registry.nodes[key(path)].copy_in(tree.tiers.locations[""].host).pages for path in ("a", "ab"))
    assert deliver(tree) == [
        move("a", GPU, HOST, "one", evict=False, pages=a),
        move("a", GPU, DISK, "one", evict=False),
        move("ab", GPU, HOST, "one", evict=False, pages=b),
        move("ab", GPU, DISK, "one", evict=False),
    ]
    tree.grants.complete(running, kept=True, unwritten=())
    assert take_pending_moves(tree) == []
    # Slower tiers hold the copies already, so eviction copies nothing.
    assert ask(tree, "C").moves == [move("ab", GPU, None, "one"), move("a", GPU, None, "one")]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_write_through_copies_only_documents_computed_into_the_gpu():
    tree = paged_tree_of(1, 2, 2, write_through=True)
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    assert [(step.source, step.kept) for step in ask(tree, "ab").documents] == [(DISK, GPU), (None, HOST)]
    assert take_pending_moves(tree) == []


def test_write_through_skips_a_document_deleted_during_its_prefill():
    tree = paged_tree_of(2, 4, write_through=True)
    running = begin(tree, "a")
    tree.delete("a")
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert take_pending_moves(tree) == [move("a", GPU, None, "one")]


def test_a_pending_copy_that_is_dropped_is_never_made():
    tree = paged_tree_of(2, 4, write_through=True)
    ask(tree, "a")
    tree.grants.lose("one", [(key("a"), HOST)])
    assert [pending.target for pending in take_pending_moves(tree)] == [None]
    ask(tree, "b")
    tree.delete("b")
    assert all(pending.target is None for pending in take_pending_moves(tree))


def test_a_pending_copy_that_moves_on_is_made_first():
    tree = paged_tree_of(2, 1, 2)
    tree.grants.complete(failed := begin(tree, "a"), kept=True)
    ask(tree, "b")
    first = begin(tree, "c")
    second = begin(tree, "d")
    pages = [pending.pages for pending in (*first.moves, *second.moves)]
    assert [*first.moves, *second.moves] == [
        move("a", GPU, HOST, "one", pages=pages[0]),
        move("a", HOST, DISK, pages=pages[0]),
        move("b", GPU, HOST, "one", pages=pages[2]),
    ]
    for grant in (second, first):
        tree.grants.complete(grant, kept=False)
    assert take_pending_moves(tree) == [*first.moves, *second.moves]
    assert failed.completed


def test_pending_copies_of_a_removed_instance_are_forgotten():
    tree = paged_tree_of(2, 4, write_through=True)
    ask(tree, "ab")
    ask(tree, "c", "two")
    tree.remove_instance("one")
    check_integrity(tree)
    assert found(tree, "ab", "two") == []
    assert found(tree, "c", "two") == [GPU]
    assert [pending.node for pending in take_pending_moves(tree, "two") if pending.target] == [key("c").hex()]


# Plans that never carried out their moves


def test_the_moves_of_a_failed_plan_wait_for_the_next_plan():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    check_integrity(tree)
    assert ask(tree, "").moves == failed.moves == [move("a", GPU, HOST, "one", pages=Pages((0,), 1))]
    assert take_pending_moves(tree) == []


def test_a_prefilled_plan_has_begun_its_moves():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    running = begin(tree, "b")
    [swapped_out] = running.moves
    tree.grants.prefilled(running)
    tree.grants.complete(running, kept=False)
    # They are not repeated. The instance is asked whether the copy is there.
    assert take_pending_moves(tree) == [move("a", HOST, HOST, evict=False, pages=swapped_out.pages)]


def test_a_repeated_move_does_not_evict_a_newer_gpu_copy():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    pages = failed.moves[0].pages
    delivery = MoveBatch("one")
    tree.tiers.take_moves(delivery)
    tree.tiers.under_way.begin(delivery)
    assert delivery.moves == failed.moves
    # The engine has the move before the plan for a, so host memory has a by the time the plan loads it.
    grant = begin(tree, "a")
    assert grant.documents[0].pages == pages
    tree.grants.complete(grant, kept=True)
    tree.tiers.under_way.give_back(delivery, failed.tick)
    assert take_pending_moves(tree) == [move("a", GPU, HOST, "one", evict=False, pages=pages)]


def test_other_instances_take_over_a_removed_instances_moves_of_shared_tiers():
    tree = paged_tree_of(1, 1, 1)
    for path in "abc":
        ask(tree, path)
    running = begin(tree, "d")
    assert [pending.instance for pending in running.moves] == [None, None, "one"]
    tree.remove_instance("one")
    check_integrity(tree)
    # The plan may have swapped c out before the instance was lost.
    assert [(pending.source, pending.target) for pending in take_pending_moves(tree, "two")] == [
        (DISK, None),
        (HOST, DISK),
        (HOST, HOST),
    ]


@pytest.mark.parametrize("given_back", [False, True], ids=["under way", "given back"])
def test_moves_that_were_lost_with_three_instances_are_given_up_and_others_go_on(given_back: bool):
    tree = paged_tree_of(1, 1, 1)
    for path in "abc":
        ask(tree, path)
    begin(tree, "d")
    moving = [(DISK, None), (HOST, DISK)]
    for lost in ("one", "three", "four"):
        tree.tiers.add_instance(lost)
        if lost != "one":
            batch = MoveBatch(lost)
            tree.tiers.take_moves(batch)
            assert [(taken.source, taken.target) for taken in batch.moves] == [*moving, (HOST, HOST)]
            tree.tiers.under_way.begin(batch)
            if given_back:
                tree.tiers.under_way.give_back(batch, tree.grants.tick)
        tree.remove_instance(lost)
        check_integrity(tree)
    assert tree.tiers.under_way.given_up == 2
    # Only what they were to write is looked for.
    unwritten = [(key("b"), DISK), (key("c"), HOST)]
    assert all(look.source is look.target for look in deliver(tree, "two", unwritten))
    check_integrity(tree)
    assert found(tree, "b", "two") == found(tree, "c", "two") == []
    ask(tree, "e", "two")
    assert [(other.source, other.target) for other in ask(tree, "f", "two").moves] == [(GPU, HOST)]
    check_integrity(tree)


# Blocked documents


def test_a_blocked_document_is_neither_kept_nor_restored_until_it_is_unblocked():
    tree = paged_tree_of(4, 4)
    tree.registry.block("b", None)
    tree.registry.block("b", TENANT)
    for _ in range(2):
        assert [step.kept for step in ask(tree, "abc").documents] == [GPU, None, None]
        assert restore(tree, [ResidencyReport(GPU, (HeldNode(TENANT, ("b",), 1),), "one")]).refused == 1
        tree.registry.unblock("b", None)
        if tree.registry._blocks("b", TENANT):
            tree.registry.block("b", "another")
            tree.registry.unblock("b", "another")
        tree.registry.block("b", None)
    tree.registry.unblock("b", None)
    tree.registry.unblock("b", TENANT)
    assert [step.kept for step in ask(tree, "abc").documents] == [GPU, GPU, GPU]
