"""Machines with host memory and a disk of their own, and what happens when one has no instance any more."""

import pytest
from controller_integrity import check_integrity
from tree_cases import (
    DISK,
    GPU,
    HOST,
    TENANT,
    ask,
    begin,
    disk_of,
    found,
    host_of,
    key,
    linear_cost,
    take_pending_moves,
    tree_of,
)

from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import HeldNode, Pages

ELSEWHERE = "elsewhere"


def near_and_far(gpu: int, host: int = 0, disk: int = 0, **changes) -> KnowledgeTree:
    """A tree of the instance ``near``, and of ``far`` and ``further``, which share another machine."""
    far = ["far", "further"]
    return tree_of(gpu, host, disk, instances=["near"], elsewhere=far, cost=linear_cost, **changes)


def test_instances_find_what_is_on_their_own_machine():
    tree = near_and_far(gpu=2, host=9, disk=9)
    for path in ("ab", "xy"):
        ask(tree, path, "far")
    assert found(tree, "ab", "far") == found(tree, "ab", "further") == [HOST, HOST]
    assert found(tree, "ab", "near") == []
    ask(tree, "ab", "near")
    assert found(tree, "ab", "near") == [GPU, GPU]
    assert (host_of(tree).used, host_of(tree, ELSEWHERE).used) == (0, 2)
    check_integrity(tree)


def test_what_leaves_a_gpu_goes_to_its_own_machine():
    tree = near_and_far(gpu=1, host=9)
    for instance, location in (("near", ""), ("far", ELSEWHERE)):
        ask(tree, "a", instance)
        moves = ask(tree, "b", instance).moves
        assert [(move.target, move.instance, move.location) for move in moves] == [(HOST, instance, location)]
    node = tree.registry.nodes[key("a")]
    assert {copy.cache.location for copy in node.copies} == {"", ELSEWHERE}


def test_each_machine_has_pages_of_its_own():
    tree = near_and_far(gpu=1, host=2, arena=PageAllocator(2, 1))
    for instance in ("near", "far"):
        for path in ("a", "b", "c"):
            ask(tree, path, instance)
    assert (host_of(tree).used, host_of(tree, ELSEWHERE).used) == (2, 2)
    check_integrity(tree)


def test_an_instance_takes_the_moves_of_its_own_machine_only():
    tree = near_and_far(gpu=1, host=9)
    for instance in ("near", "far"):
        ask(tree, "a", instance)
        ask(tree, "b", instance)
    tree.delete("a")
    for instance, location in (("further", ELSEWHERE), ("near", "")):
        assert tree.tiers.has_moves(instance)
        moves = [move for move in take_pending_moves(tree, instance) if move.instance is None]
        assert [(move.source, move.location) for move in moves] == [(HOST, location)]
        assert not tree.tiers.has_moves(instance)


def test_the_same_file_is_deleted_on_every_machine():
    tree = near_and_far(gpu=1, disk=9)
    for instance in ("near", "far"):
        ask(tree, "a", instance)
        ask(tree, "b", instance)
    tree.delete("a")
    assert {move.location for move in tree.tiers.pending_moves if move.source is DISK} == {"", ELSEWHERE}


def test_a_file_that_is_being_deleted_may_be_written_on_another_machine():
    tree = near_and_far(gpu=1, disk=9)
    ask(tree, "a", "near")
    ask(tree, "b", "near")
    tree.delete("a")
    deletes = begin(tree, "c", "near")
    assert (DISK, None) in {(move.source, move.target) for move in deletes.moves}
    ask(tree, "a", "far")
    node = tree.registry.nodes[key("a")]
    assert tree.tiers.under_way.may_delete(node, disk_of(tree))
    assert not tree.tiers.under_way.may_delete(node, disk_of(tree, ELSEWHERE))


def test_a_copy_on_one_machine_supports_none_on_another():
    # Otherwise, evicting it would drop copies that its instance does not reach.
    tree = near_and_far(gpu=3, host=1)
    ask(tree, "Ab", "near")
    ask(tree, "A", "far")
    left = ask(tree, "Xy", "near").moves
    assert found(tree, "Ab", "near") == []
    assert host_of(tree).copies == 0
    assert {(move.node, move.target) for move in left} >= {(key("Ab").hex(), None)}


def test_loss_reports_concern_the_machine_of_their_instance():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.grants.lose("far", [(key("a"), HOST)])
    assert found(tree, "a", "near") == [HOST]
    tree.grants.lose("near", [(key("a"), HOST)])
    assert found(tree, "a", "near") == []


def test_loss_reports_of_a_removed_instance_are_ignored():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.tiers.add_instance("next")
    tree.remove_instance("near")
    tree.grants.lose("near", [(key("a"), GPU), (key("a"), HOST)])
    assert found(tree, "a", "next") == [HOST]
    check_integrity(tree)


@pytest.mark.parametrize("write_through", [False, True])
def test_everything_is_kept_on_every_disk_before_the_stack_stops(write_through):
    tree = near_and_far(gpu=9, host=9, disk=9, write_through=write_through)
    ask(tree, "ab", "near")
    ask(tree, "cd", "far")
    tree.persist()
    assert (disk_of(tree).used, disk_of(tree, ELSEWHERE).used) == (2, 2)
    assert all(move.location in ("", ELSEWHERE) for move in tree.tiers.pending_moves)
    assert {move.instance for move in take_pending_moves(tree, "near")} <= {None, "near"}
    assert {move.instance for move in take_pending_moves(tree, "far")} <= {None, "far"}


# A machine without instances


def test_a_machine_keeps_its_copies_while_its_instances_change():
    tree = near_and_far(gpu=1, host=9)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.remove_instance("near")
    tree.tiers.add_instance("next")
    assert found(tree, "a", "next") == [HOST]


@pytest.mark.parametrize("kept", [True, False])
def test_a_machine_that_is_removed_leaves_nothing(kept):
    tree = near_and_far(gpu=2, host=4, disk=9, arena=PageAllocator(4, 1, first_stamp=100))
    for path in ("ab", "cd", "ef"):
        ask(tree, path, "near")
        ask(tree, path, "far")
    elsewhere = begin(tree, "ab", "far")
    tree.delete("c")
    writes = begin(tree, "vwxyz", "near")
    assert HOST in {step.kept for step in writes.documents}
    tree.remove_instance("near")
    tree.remove_location("")
    check_integrity(tree)
    assert {move.location for move in tree.tiers.pending_moves} <= {ELSEWHERE}
    tree.grants.complete(elsewhere, kept)
    assert found(tree, "ab", "far") in ([HOST, HOST], [GPU, GPU])
    check_integrity(tree)

    # It comes back with what it says that it holds.
    tree.tiers.add_location("", 4, 9, PageAllocator(4, 1, first_stamp=200))
    tree.tiers.add_instance("next")
    assert tree.insert(HeldNode(TENANT, ("a",), 1, Pages((0,), 7)), host_of(tree))
    assert found(tree, "ab", "next") == [HOST]
    for path in ("pq", "rs", "tu"):
        ask(tree, path, "next")
    check_integrity(tree)


def test_the_capacity_is_that_of_all_caches_that_are_there():
    tree = near_and_far(gpu=2, host=3, disk=4)
    assert tree.tiers.capacity == 3 * 2 + 2 * 3 + 2 * 4
    tree.tiers.add_location(ELSEWHERE, 5, 6)
    tree.tiers.add_location("third", 5, 6)
    tree.tiers.add_instance("late", "third")
    tree.tiers.add_instance("late", "third")
    assert tree.tiers.capacity == sum(cache.capacity for cache in tree.tiers) == 20 + 5 + 6 + 2
    for instance in ("far", "further"):
        tree.remove_instance(instance)
    tree.remove_location(ELSEWHERE)
    assert tree.tiers.capacity == sum(cache.capacity for cache in tree.tiers) == 2 + 3 + 4 + 2 + 5 + 6
