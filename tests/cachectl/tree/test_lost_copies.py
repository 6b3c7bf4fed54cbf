"""Copies that engines report as lost leave the tree with all copies that only they support."""

import pytest
from controller_integrity import check_integrity
from tree_cases import DISK, GPU, HOST, TENANT, ask, begin, disk_of, found, key, move, take_pending_moves, tree_of

from cachectl.tree.grant import Grant
from protocol.kv import HeldNode


def test_a_lost_copy_is_removed_with_all_copies_that_only_it_supports():
    tree = tree_of(4)
    for path in ("abc", "ad"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "abc") == [GPU]
    assert found(tree, "ad") == [GPU, GPU]
    # The lost copy needs no drop. The copy behind it does.
    assert take_pending_moves(tree) == [move("abc", GPU, None, "one")]


def test_a_lost_copy_leaves_the_other_copies_of_its_node():
    tree = tree_of(2, 2)
    for path in ("ab", "C", "ab"):
        ask(tree, path)
    tree.grants.complete(begin(tree, "ab"), kept=True, lost=[(key("a"), GPU)])
    check_integrity(tree)
    # a's GPU copy supported b's. The copies in host memory support each other.
    assert found(tree, "ab") == [HOST, HOST]


@pytest.mark.parametrize("event", ["prefilled", "complete", "lose"])
def test_any_copy_may_be_reported_lost_and_unknown_copies_are_ignored(event):
    tree = tree_of(4, 2)
    ask(tree, "ab")
    running = begin(tree, "c")
    lost = [(key("a"), GPU), (key("x"), GPU), (key("ab"), DISK), (b"", HOST)]
    if event == "prefilled":
        tree.grants.prefilled(running, lost)
    elif event == "lose":
        tree.grants.lose("one", lost)
    tree.grants.complete(running, True, lost if event == "complete" else [])
    check_integrity(tree)
    assert found(tree, "ab") == []
    assert found(tree, "c") == [GPU]
    # The instance knows that it lost a. It still holds b, which a supported.
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
    again = begin(tree, "a")
    assert again.documents[0].source is None
    tree.grants.complete(second, kept=True, lost=[(key("a"), GPU)])
    tree.grants.complete(again, kept=True)
    assert (found(tree, "a") == [GPU]) == (again.documents[0].kept is GPU)
    check_integrity(tree)


def test_a_failed_plan_reports_lost_copies_too():
    tree = tree_of(4)
    ask(tree, "ab")
    tree.grants.complete(begin(tree, "ab"), kept=False, lost=[(key("ab"), GPU)])
    check_integrity(tree)
    assert found(tree, "ab") == [GPU]


def serve_continuously(tree, running, plans=5) -> Grant:
    """Admit plans for the document s, each before the last one completes. Returns the last, which still runs."""
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
    serve_continuously(tree, running)
    assert found(tree, "s") == [GPU]


def test_a_failed_plans_room_is_used_again_under_continuous_plans():
    tree = tree_of(4)
    failing, running = begin(tree, "s"), begin(tree, "s")
    assert running.documents[0].kept is None
    tree.grants.complete(failing, kept=False)
    serve_continuously(tree, running)
    assert found(tree, "s") == [GPU]


def test_a_copy_that_a_running_plan_loads_outlives_its_lost_parent():
    # b is in host memory behind a. a is on disk and in the GPU of one, where it is about to be lost.
    tree = tree_of(1, 1, 2)
    ask(tree, "ab", "one")
    tree.insert(HeldNode(TENANT, ("a",), 1), disk_of(tree))
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
    # The running plan may save b at any time, so only one token of room is left.
    assert [step.kept for step in begin(tree, "C").documents] == [None]


def test_a_failed_plan_releases_only_its_own_reservations():
    # b is to be saved on disk, supported by s in host memory. That copy is lost, and the plan that saves s fails.
    tree = tree_of(0, 1, 2)
    first, failing = begin(tree, "s"), begin(tree, "s")
    assert [grant.documents[0].kept for grant in (first, failing)] == [HOST, DISK]
    tree.grants.complete(first, kept=True)
    running = begin(tree, "sb")
    assert [(step.source, step.kept) for step in running.documents] == [(HOST, HOST), (None, DISK)]
    tree.grants.complete(begin(tree, "s"), kept=True, lost=[(key("s"), HOST)])
    tree.grants.complete(failing, kept=False)
    check_integrity(tree)
    # One of the disk's two tokens is still reserved for b.
    other = begin(tree, "cd")
    assert [step.kept for step in other.documents] == [DISK, None]
    for grant in (running, other):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
    assert found(tree, "sb") == []
    assert move("sb", DISK, None) in take_pending_moves(tree)


def test_a_copy_saved_without_a_reservation_is_dropped():
    # b loses its room in the GPU with a, which another plan reports lost. The running plan saves b there regardless.
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
    # b is to be saved in host memory, supported by a in the GPU of one. That copy is lost. Another plan's reservation
    # for a in host memory does not support b.
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
