"""Isolated instances, which reach no shared tier, and shared tiers that are lost with their last instance."""

import pytest
from tree_cases import (
    DISK,
    GPU,
    HOST,
    TENANT,
    ask,
    begin,
    found,
    key,
    linear_cost,
    take_pending_moves,
    tree_of,
)

from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import HeldNode, Pages


def near_and_far(gpu: int, host: int = 0, disk: int = 0, **changes) -> KnowledgeTree:
    """A tree of the instance ``near``, and of ``far``, which is isolated."""
    return tree_of(gpu, host, disk, instances=["near"], isolated=["far"], cost=linear_cost, **changes)


def test_an_isolated_instance_finds_nothing_below_its_gpu_and_swaps_nothing_out():
    tree = near_and_far(gpu=2, host=9, disk=9)
    ask(tree, "ab", "near")
    ask(tree, "xy", "near")
    assert (found(tree, "ab", "near"), found(tree, "ab", "far")) == ([HOST, HOST], [])
    ask(tree, "ab", "far")
    assert found(tree, "ab", "far") == [GPU, GPU]
    moves = ask(tree, "xy", "far").moves
    assert [(move.source, move.target, move.instance) for move in moves] == [(GPU, None, "far")] * 2


def test_a_document_too_large_for_an_isolated_gpu_is_not_kept():
    tree = near_and_far(gpu=1, host=9)
    grant = ask(tree, "A", "far")
    assert [step.kept for step in grant.documents] == [None]
    assert ask(tree, "A", "near").documents[0].kept is HOST


@pytest.mark.parametrize("write_through", [False, True])
def test_nothing_is_copied_down_from_an_isolated_instance(write_through):
    tree = near_and_far(gpu=9, host=9, disk=9, write_through=write_through)
    ask(tree, "ab", "far")
    tree.pin(TENANT, "a")
    ask(tree, "ab", "far")
    tree.persist()
    assert [cache.used for cache in (tree.tiers.host, tree.tiers.disk)] == [0, 0]
    assert not tree.tiers.pending_moves


def test_an_isolated_gpu_supports_nothing_in_shared_tiers():
    # Otherwise, evicting from the isolated GPU would drop copies from tiers that the instance does not reach.
    tree = near_and_far(gpu=3, host=1)
    ask(tree, "Ab", "near")
    ask(tree, "A", "far")
    left = ask(tree, "Xy", "near").moves
    assert found(tree, "Ab", "near") == []
    assert tree.tiers.host.copies == 0
    assert {(move.node, move.target) for move in left} >= {(key("Ab").hex(), None)}
    assert all(move.instance == "far" for move in ask(tree, "Xy", "far").moves)


def test_an_isolated_instance_takes_no_moves_of_shared_tiers():
    tree = near_and_far(gpu=1, host=9)
    ask(tree, "a", "near")
    ask(tree, "b", "near")
    ask(tree, "a", "far")
    tree.delete("a")
    assert tree.tiers.has_moves("far")
    assert [(move.source, move.instance) for move in take_pending_moves(tree, "far")] == [(GPU, "far")]
    assert not tree.tiers.has_moves("far")
    assert tree.tiers.has_moves("near")
    assert [move.source for move in take_pending_moves(tree, "near") if move.instance is None] == [HOST]


def test_loss_reports_of_an_isolated_instance_do_not_concern_shared_tiers():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.grants.lose("far", [(key("a"), HOST)])
    assert found(tree, "a", "near") == [HOST]
    tree.grants.lose("near", [(key("a"), HOST)])
    assert found(tree, "a", "near") == []


def test_loss_reports_of_a_removed_instance_concern_shared_tiers_only():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.add_instance("next")
    tree.remove_instance("near")
    tree.grants.lose("near", [(key("a"), GPU), (key("a"), HOST)])
    assert tree.registry.nodes == {}
    check_integrity(tree)


# Lost shared tiers


@pytest.mark.parametrize("kept", [True, False])
def test_lost_shared_tiers_are_empty_at_once_despite_running_plans(kept):
    tree = near_and_far(gpu=2, host=4, disk=9, arena=PageAllocator(4, 1, first_stamp=100))
    for path in ("ab", "cd", "ef"):
        ask(tree, path, "near")
    loads = begin(tree, "ab", "near")
    writes = begin(tree, "vwxyz", "near")
    assert {step.source for step in loads.documents} == {HOST}
    assert HOST in {step.kept for step in writes.documents}
    tree.tiers.retired.add("near")
    tree.lose_shared()
    check_integrity(tree)
    assert [(cache.used, cache.copies) for cache in (tree.tiers.host, tree.tiers.disk)] == [(0, 0)] * 2
    assert tree.tiers.isolated("near")

    # The next instance brings its own shared tiers, with the reported copies and all their room.
    tree.add_instance("next")
    pages = Pages((0,), 7)
    assert tree.insert(HeldNode(TENANT, ("a",), 1, pages), HOST, None)
    for path in ("pq", "rs", "tu"):
        ask(tree, path, "next")
    assert tree.tiers.host.used == 4
    assert found(tree, "a", "next") in ([HOST], [DISK])

    tree.grants.complete(loads, kept)
    tree.grants.complete(writes, kept)
    check_integrity(tree)
    assert found(tree, "ab", "next") in ([HOST], [DISK])
    # The moves that the plans took concern memory that no longer exists.
    assert not any(move.source is not GPU for move in take_pending_moves(tree, "next"))
    tree.remove_instance("near")
    assert not any(move.pages is not None and move.pages.stamp < 100 for move in tree.tiers.pending_moves)
    check_integrity(tree)


def test_pending_moves_of_lost_shared_tiers_are_discarded():
    tree = near_and_far(gpu=1, host=9, disk=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.delete("a")
    tree.tiers.retired.add("near")
    tree.lose_shared()
    tree.add_instance("next")
    assert not tree.tiers.has_moves("next")
    tree.remove_instance("near")
    assert not tree.tiers.pending_moves


def test_moves_of_lost_shared_tiers_are_not_given_to_the_next_instance():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.delete("a")
    running = begin(tree, "b", "near")
    assert [move.source for move in running.moves] == [HOST]
    tree.tiers.retired.add("near")
    tree.lose_shared()
    tree.add_instance("next")
    tree.grants.complete(running, kept=False)
    assert not tree.tiers.has_moves("next")
    check_integrity(tree)
