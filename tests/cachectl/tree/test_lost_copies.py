"""Copies that engines report as lost leave the tree with all copies that only they support."""

import pytest
from tree_cases import DISK, GPU, HOST, TENANT, ask, begin, found, key, move, take_pending_moves, tree_of

from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from protocol.kv import HeldNode


def test_a_lost_copy_is_removed_with_all_copies_that_only_it_supports():
    tree = tree_of(4)
    for path in ("abc", "ad"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "abc") == [GPU]
    assert found(tree, "ad") == [GPU, GPU]
    # Nobody need drop what is not there; what stood on it is.
    assert take_pending_moves(tree) == [move("abc", GPU, None, "one")]


def test_a_lost_copy_leaves_the_other_copies_of_its_node():
    tree = tree_of(2, 2)
    for path in ("ab", "C", "ab"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    # b's copy in the GPU stood on a's there; those in host stand on each other.
    assert found(tree, "ab") == [HOST, HOST]


@pytest.mark.parametrize("told", ["commit", "settle", "lose"])
def test_any_copy_may_be_reported_lost_and_unknown_copies_are_ignored(told):
    tree = tree_of(4, 2)
    ask(tree, "ab")
    running = begin(tree, "c")
    lost = [(key("a"), GPU), (key("x"), GPU), (key("ab"), DISK), (b"", HOST)]
    if told == "commit":
        tree.grants.prefilled(running, lost)
    elif told == "lose":
        tree.grants.lose("one", lost)
    tree.grants.complete(running, True, lost if told == "settle" else [])
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert found(tree, "c") == [GPU]
    # Who lost a knows; b, which stood on it, is still there.
    assert take_pending_moves(tree) == [move("ab", GPU, None, "one")]


def test_a_lost_copy_keeps_its_room_while_another_plan_uses_it():
    tree = tree_of(2)
    ask(tree, "ab")
    using, telling = begin(tree, "ab"), begin(tree, "")
    tree.grants.complete(telling, kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert tree.tiers.gpu("one").used == 2
    tree.grants.complete(using, kept=True)
    check_integrity(tree)
    assert tree.tiers.gpu("one").used == 0


def test_a_copy_that_could_not_be_saved_is_not_kept():
    tree = tree_of(4)
    tree.grants.complete(begin(tree, "abc"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "abc") == [GPU]
    assert tree.tiers.gpu("one").used == 1


def test_a_lost_copy_may_be_reported_twice():
    tree = tree_of(4)
    ask(tree, "ab")
    first, second = begin(tree, "ab"), begin(tree, "ab")
    for grant in (first, second):
        tree.grants.complete(grant, kept=True, lost=[(key("a"), GPU)])
        check_integrity(tree)
    assert not tree.registry.nodes


def test_a_late_loss_report_does_not_take_a_newer_reservation():
    tree = tree_of(4)
    ask(tree, "a")
    first, second = begin(tree, "a"), begin(tree, "a")
    tree.grants.complete(first, kept=True, lost=[(key("a"), GPU)])
    anew = begin(tree, "a")
    assert anew.documents[0].source is None
    tree.grants.complete(second, kept=True, lost=[(key("a"), GPU)])
    tree.grants.complete(anew, kept=True)
    assert (found(tree, "a") == [GPU]) == (anew.documents[0].kept is GPU)
    check_integrity(tree)


def test_a_failed_plan_reports_lost_copies_too():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.grants.complete(begin(tree, "ab"), kept=False, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "ab") == [GPU]


def served_without_a_pause(tree, running, plans=5) -> Grant:
    """Plans for the document s, each granted before the last one is settled; the last, still running."""
    for _ in range(plans):
        following = begin(tree, "s")
        tree.grants.complete(running, kept=True)
        check_integrity(tree)
        running = following
    return running


def test_a_lost_copy_is_replaced_under_continuous_plans():
    tree = tree_of(4)
    ask(tree, "s")
    running = begin(tree, "s")
    tree.grants.complete(begin(tree, "s"), kept=True, lost=[(key("s"), GPU)])
    assert found(tree, "s") == []
    served_without_a_pause(tree, running)
    assert found(tree, "s") == [GPU]


def test_a_failed_plans_room_is_used_again_under_continuous_plans():
    tree = tree_of(4)
    failing, running = begin(tree, "s"), begin(tree, "s")
    assert running.documents[0].kept is None
    tree.grants.complete(failing, kept=False)
    served_without_a_pause(tree, running)
    assert found(tree, "s") == [GPU]


def test_a_copy_that_a_running_plan_loads_outlives_its_lost_parent():
    # b lies in host behind a, which lies in the GPU of one (and cannot be had from there any more) and on disk.
    tree = tree_of(1, 1, 2)
    ask(tree, "ab", "one")
    tree.insert(HeldNode(TENANT, ("a",), 1), DISK, None)
    running = begin(tree, "ab", "two")
    assert [step.source for step in running.documents] == [DISK, HOST]
    tree.grants.complete(begin(tree, "a", "one"), kept=True, lost=[(key("a"), GPU)])
    assert move("ab", HOST, None) not in take_pending_moves(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)


def test_a_running_plans_reservation_outlives_its_lost_parent():
    tree = tree_of(2)
    ask(tree, "a")
    running, other = begin(tree, "ab"), begin(tree, "a")
    assert running.documents[1].kept is GPU
    tree.grants.complete(other, kept=True, lost=[(key("a"), GPU)])
    # The running plan may save b at any time, so one token's room is all there is.
    assert [step.kept for step in begin(tree, "C").documents] == [None]


def test_a_failed_plan_releases_only_its_own_reservations():
    # b is to be saved on disk on the strength of s in host. That copy is lost, and the promise of s on disk fails.
    tree = tree_of(0, 1, 2)
    first, failing = begin(tree, "s"), begin(tree, "s")
    assert [grant.documents[0].kept for grant in (first, failing)] == [HOST, DISK]
    tree.grants.complete(first, kept=True)
    running = begin(tree, "sb")
    assert [(step.source, step.kept) for step in running.documents] == [(HOST, HOST), (None, DISK)]
    tree.grants.complete(begin(tree, "s"), kept=True, lost=[(key("s"), HOST)])
    tree.grants.complete(failing, kept=False)
    check_integrity(tree)
    # Of disk's two tokens one is still b's.
    other = begin(tree, "cd")
    assert [step.kept for step in other.documents] == [DISK, None]
    for grant in (running, other):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
    assert found(tree, "sb") == []
    assert move("sb", DISK, None) in take_pending_moves(tree)


def test_a_copy_saved_without_a_reservation_is_dropped():
    # b's room in the GPU went with a, whose copy there another plan found to be gone; b is saved there all the same.
    tree = tree_of(2)
    ask(tree, "a")
    running, other = begin(tree, "ab"), begin(tree, "a")
    tree.grants.complete(other, kept=True, lost=[(key("a"), GPU)])
    take_pending_moves(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert move("ab", GPU, None, "one") in take_pending_moves(tree)


def test_a_saved_copy_needs_a_parent_that_is_held_not_reserved():
    # b is to be saved in host on the strength of a in the GPU of one. That copy is lost, and another plan's promise of
    # a in host does not stand in for it.
    tree = tree_of(2, 2)
    ask(tree, "a", "one")
    blocking = [begin(tree, "c", "one"), begin(tree, "D", "two")]
    running = begin(tree, "ab", "one")
    promised = begin(tree, "a", "two")
    assert [grant.documents[-1].kept for grant in (running, promised)] == [HOST, HOST]
    tree.grants.complete(begin(tree, "a", "one"), kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    for grant in (promised, *blocking):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
