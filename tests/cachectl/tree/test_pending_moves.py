"""Moves reach the tiers, even if their plan fails or no plan takes them along."""

import pytest
from tree_cases import DISK, GPU, HOST, TENANT, ask, begin, found, key, move, paged_tree_of, take_pending_moves

from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.page_allocator import PageAllocator
from cachectl.tree.restore import restore
from cachectl.tree.tier_manager import Capacities
from protocol.errors import ConfigError
from protocol.kv import HeldNode, Pages, ResidencyReport

PAGE = 2


# Pages


def test_host_memory_has_as_many_pages_as_its_budget():
    with pytest.raises(ConfigError, match="pages for 6 tokens, not for 8"):
        KnowledgeTree(
            create_policy("LRU", Lookahead()),
            Capacities(0, 8),
            [],
            lambda c, n: 1.0,
            page_tokens=2,
            arena=PageAllocator(3, 2),
        )


def test_a_budget_counts_whole_pages():
    # b begins in the middle of the page that a ends in, so both take that page.
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
    # b's page in host memory goes to c at once, under another stamp.
    third = Pages((1,), 3)
    assert ask(tree, "d").moves == [move("b", HOST, DISK, pages=second), move("c", GPU, HOST, "one", pages=third)]
    full = begin(tree, "dE")
    assert [(step.source, step.kept, step.pages) for step in full.documents] == [
        (GPU, GPU, None),
        (None, HOST, Pages((1, 0), 4)),
    ]


def test_what_is_computed_into_host_memory_has_its_pages_in_the_plan():
    tree = paged_tree_of(0, 2, page=PAGE)
    grant = begin(tree, "A")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, HOST, Pages((0,), 1))]
    tree.grants.complete(grant, kept=True)
    tree.delete("A")
    assert take_pending_moves(tree) == [move("A", HOST, None, pages=Pages((0,), 1))]


def test_restored_nodes_keep_their_pages_and_new_stamps_are_higher_than_all_that_were_seen():
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


def test_a_report_of_other_pages_than_the_tree_knows_is_refused():
    tree = paged_tree_of(0, 4, page=PAGE)
    ask(tree, "a")
    assert restore(tree, [ResidencyReport(HOST, (HeldNode(TENANT, ("a",), 1, Pages((3,), 9)),))]).refused == 1
    assert take_pending_moves(tree) == []


# Load or recompute


def test_what_is_not_worth_loading_is_computed_and_kept_in_the_gpu_and_its_slower_copy_stays():
    tree = paged_tree_of(2, 4, load_s=5.0)
    for path in ("ab", "cd"):
        ask(tree, path)
    assert found(tree, "ab") == [HOST, HOST]
    grant = ask(tree, "ab")
    assert [(step.source, step.kept, step.pages) for step in grant.documents] == [(None, GPU, None)] * 2
    assert found(tree, "ab") == [GPU, GPU]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_what_is_computed_though_it_is_held_and_has_no_room_is_kept_where_it_was():
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


def test_what_was_computed_is_copied_to_every_slower_tier_as_its_plan_commits():
    tree = paged_tree_of(2, 4, 4, write_through=True)
    running = begin(tree, "ab")
    assert take_pending_moves(tree) == []
    tree.grants.prefilled(running)
    check_integrity(tree)
    a, b = (tree.registry.nodes[key(path)].copies[tree.tiers.host].pages for path in ("a", "ab"))
    assert take_pending_moves(tree) == [
        move("a", GPU, HOST, "one", evict=False, pages=a),
        move("a", GPU, DISK, "one", evict=False),
        move("ab", GPU, HOST, "one", evict=False, pages=b),
        move("ab", GPU, DISK, "one", evict=False),
    ]
    tree.grants.complete(running, kept=True)
    assert take_pending_moves(tree) == []
    # Nothing is left to be copied when it goes.
    assert ask(tree, "C").moves == [move("ab", GPU, None, "one"), move("a", GPU, None, "one")]
    assert found(tree, "ab", "two") == [HOST, HOST]


def test_what_was_loaded_or_is_kept_elsewhere_is_not_copied():
    tree = paged_tree_of(1, 2, 2, write_through=True)
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    assert [(step.source, step.kept) for step in ask(tree, "ab").documents] == [(DISK, GPU), (None, HOST)]
    assert take_pending_moves(tree) == []


def test_a_document_that_is_deleted_as_it_is_computed_is_not_copied():
    tree = paged_tree_of(2, 4, write_through=True)
    running = begin(tree, "a")
    tree.delete("a")
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert take_pending_moves(tree) == [move("a", GPU, None, "one")]


def test_a_copy_that_was_dropped_before_it_was_made_is_not_made():
    tree = paged_tree_of(2, 4, write_through=True)
    ask(tree, "a")
    tree.grants.lose("one", [(key("a"), HOST)])
    assert [order.target for order in take_pending_moves(tree)] == [None]
    ask(tree, "b")
    tree.delete("b")
    assert all(order.target is None for order in take_pending_moves(tree))


def test_a_copy_that_is_moved_on_before_it_was_made_is_made_on_the_way():
    tree = paged_tree_of(2, 1, 2)
    tree.grants.complete(failed := begin(tree, "a"), kept=True)
    ask(tree, "b")
    first = begin(tree, "c")
    second = begin(tree, "d")
    pages = [order.pages for order in (*first.moves, *second.moves)]
    assert [*first.moves, *second.moves] == [
        move("a", GPU, HOST, "one", pages=pages[0]),
        move("a", HOST, DISK, pages=pages[0]),
        move("b", GPU, HOST, "one", pages=pages[2]),
    ]
    for grant in (second, first):
        tree.grants.complete(grant, kept=False)
    assert take_pending_moves(tree) == [*first.moves, *second.moves]
    assert failed.completed


def test_copies_that_an_instance_did_not_make_before_it_went_are_nowhere():
    tree = paged_tree_of(2, 4, write_through=True)
    ask(tree, "ab")
    ask(tree, "c", "two")
    tree.remove_instance("one")
    check_integrity(tree)
    assert found(tree, "ab", "two") == []
    assert found(tree, "c", "two") == [GPU]
    assert [order.node for order in take_pending_moves(tree, "two") if order.target] == [key("c").hex()]


# Plans that never carried out their orders


def test_the_orders_of_a_plan_that_failed_wait_for_the_next_one():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    check_integrity(tree)
    assert ask(tree, "").moves == failed.moves == [move("a", GPU, HOST, "one", pages=Pages((0,), 1))]
    assert take_pending_moves(tree) == []


def test_a_plan_that_had_its_first_token_has_carried_out_its_orders():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    running = begin(tree, "b")
    tree.grants.prefilled(running)
    tree.grants.complete(running, kept=False)
    assert take_pending_moves(tree) == []


def test_what_came_back_to_the_gpu_is_not_evicted_by_an_order_that_comes_again():
    tree = paged_tree_of(1, 2)
    ask(tree, "a")
    failed = begin(tree, "b")
    tree.grants.complete(failed, kept=False)
    pages = failed.moves[0].pages
    # The plan for a takes the order along: it is loaded from host memory, which has it by then.
    grant = begin(tree, "a")
    assert grant.moves == failed.moves
    tree.grants.complete(grant, kept=False)
    again = begin(tree, "a")
    assert again.documents[0].pages == pages
    late = begin(tree, "")
    tree.grants.complete(again, kept=True)
    tree.tiers.return_moves(failed.moves, "one", failed.tick)
    assert take_pending_moves(tree) == [move("a", GPU, HOST, "one", evict=False, pages=pages)]
    tree.grants.complete(late, kept=True)


def test_orders_of_an_instance_that_is_gone_are_for_others_as_far_as_they_are_about_shared_tiers():
    tree = paged_tree_of(1, 1, 1)
    for path in "abc":
        ask(tree, path)
    running = begin(tree, "d")
    assert [order.instance for order in running.moves] == [None, None, "one"]
    tree.remove_instance("one")
    check_integrity(tree)
    assert [(order.source, order.target) for order in take_pending_moves(tree, "two")] == [(DISK, None), (HOST, DISK)]


# What is shunned


def test_nothing_of_a_shunned_document_is_kept_or_restored_until_that_is_taken_back():
    tree = paged_tree_of(4, 4)
    tree.block("b", None)
    tree.block("b", TENANT)
    for _ in range(2):
        assert [step.kept for step in ask(tree, "abc").documents] == [GPU, None, None]
        assert restore(tree, [ResidencyReport(GPU, (HeldNode(TENANT, ("b",), 1),), "one")]).refused == 1
        tree.unblock("b", None)
        if tree._blocklist.blocks("b", TENANT):
            tree.block("b", "another")
            tree.unblock("b", "another")
        tree.block("b", None)
    tree.unblock("b", None)
    tree.unblock("b", TENANT)
    assert [step.kept for step in ask(tree, "abc").documents] == [GPU, GPU, GPU]
