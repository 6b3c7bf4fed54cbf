"""A copy in a shared tier counts for other instances when its writer has confirmed it."""

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
    tree_of,
)

from cachectl.nodes.node import Copy
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from cachectl.tree.snapshot import record_of
from protocol.kv import HeldNode, ResidencyReport
from protocol.tiers import Tier


def swapping_out(tree: KnowledgeTree, path: str = "a", instead: str = "b", instance: str = "one") -> Grant:
    """A running plan that swaps a document out, which only its instance's GPU holds."""
    ask(tree, path, instance)
    running = begin(tree, instead, instance)
    tree.grants.prefilled(running)
    return running


def end(tree: KnowledgeTree, running: Grant, unwritten: list[tuple[bytes, Tier]] | None = ()) -> None:
    """Complete a plan that has written all its copies but some; None if they may still be written."""
    tree.grants.complete(running, kept=True, unwritten=unwritten)
    check_integrity(tree)


def copy_of(tree: KnowledgeTree, path: str, tier: Tier) -> Copy | None:
    node = tree.registry.nodes.get(key(path))
    cache = tree.tiers.gpu("one") if tier is GPU else tree.tiers.locations[""].cache(tier)
    return node.copy_in(cache) if node is not None else None


def taken(tree: KnowledgeTree, instance: str) -> MoveBatch:
    """An instance's pending moves, which it has begun."""
    batch = MoveBatch(instance)
    tree.tiers.take_moves(batch)
    tree.tiers.under_way.begin(batch)
    return batch


@pytest.mark.parametrize("tier", [HOST, DISK])
def test_only_its_writer_finds_a_copy_before_it_is_confirmed(tier):
    tree = tree_of(1, 4 if tier is HOST else 0, 4)
    running = swapping_out(tree)
    assert (found(tree, "a", "one"), found(tree, "a", "two")) == ([tier], [])
    assert copy_of(tree, "a", tier).writer == "one"
    assert tree.tiers.locations[""].cache(tier).used == 1
    end(tree, running)
    assert (found(tree, "a", "one"), found(tree, "a", "two")) == ([tier], [tier])


def test_another_instance_finds_a_slower_copy_behind_one_that_is_not_confirmed():
    tree = tree_of(2, 2, 4)
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    ask(tree, "a")
    tree.pin(TENANT, "a")
    running = begin(tree, "a")
    tree.grants.prefilled(running)
    assert copy_of(tree, "a", HOST).writer == "one"
    assert found(tree, "a", "two") == [DISK]
    filling = begin(tree, "bc", "two")
    step = ask(tree, "a", "two").documents[0]
    assert (step.source, step.kept) == (DISK, DISK)
    for grant in (running, filling):
        end(tree, grant)


def test_what_another_instance_is_writing_is_computed_and_kept_in_the_gpu():
    tree = tree_of(1, 4)
    running = swapping_out(tree)
    step = ask(tree, "a", "two").documents[0]
    assert (step.source, step.kept) == (None, GPU)
    end(tree, running)


def test_a_plans_own_copies_in_shared_tiers_wait_for_their_writes():
    # The GPU has no room, so the plan saves its document to host memory after its first token.
    tree = tree_of(0, 2)
    running = begin(tree, "a")
    assert found(tree, "a", "one") == []
    tree.grants.prefilled(running)
    assert (found(tree, "a", "one"), found(tree, "a", "two")) == ([HOST], [])
    end(tree, running)
    assert found(tree, "a", "two") == [HOST]


# Reports


@pytest.mark.parametrize("report", ["lost", "unwritten"])
def test_a_copy_that_its_writer_misses_is_removed_and_dropped_behind_the_write(report):
    tree = tree_of(1, 0, 4)
    running = swapping_out(tree)
    if report == "lost":
        tree.grants.lose("one", [(key("a"), DISK)])
        assert take_pending_moves(tree, "two") == []
    else:
        end(tree, running, [(key("a"), DISK)])
    assert found(tree, "a", "one") == []
    # The failure may have come after the file was published.
    assert take_pending_moves(tree) == [move("a", DISK, None)]


def test_another_instances_report_does_not_concern_a_copy_that_is_being_written():
    # The report is about the file that was there before.
    tree = tree_of(1, 0, 4)
    running = swapping_out(tree)
    tree.grants.lose("two", [(key("a"), DISK)])
    end(tree, running)
    assert found(tree, "a", "two") == [DISK]
    assert take_pending_moves(tree) == []


def test_a_confirmed_copy_that_is_reported_lost_is_dropped_for_the_report_may_be_late():
    tree = tree_of(1, 0, 4)
    end(tree, swapping_out(tree))
    tree.grants.lose("two", [(key("a"), DISK)])
    assert found(tree, "a") == []
    assert take_pending_moves(tree, "two") == [move("a", DISK, None)]


@pytest.mark.parametrize("there", [True, False])
def test_an_instance_is_asked_for_its_copies_if_it_did_not_report_the_end(there):
    tree = tree_of(1, 0, 4)
    end(tree, swapping_out(tree), None)
    assert found(tree, "a", "two") == []
    assert not tree.tiers.has_moves("two")
    assert deliver(tree, "one", () if there else [(key("a"), DISK)]) == [move("a", DISK, DISK, evict=False)]
    check_integrity(tree)
    assert found(tree, "a", "two") == ([DISK] if there else [])


def test_a_lone_instance_is_asked_only_if_a_plan_takes_the_question_along():
    tree = tree_of(1, 0, 4, instances=["one"])
    end(tree, swapping_out(tree), None)
    assert found(tree, "a", "one") == [DISK]
    assert not tree.tiers.has_moves("one")
    tree.tiers.add_instance("two")
    assert tree.tiers.has_moves("one")


def test_nobody_is_asked_for_a_copy_that_is_confirmed_or_gone_by_then():
    tree = tree_of(1, 0, 4)
    end(tree, swapping_out(tree), None)
    tree.delete("a")
    assert take_pending_moves(tree) == [move("a", DISK, None)]


# Evictions


def test_no_other_instance_evicts_a_copy_that_is_still_being_written():
    tree = paged_tree_of(1, 1, 4)
    ask(tree, "c", "two")
    running = swapping_out(tree)
    # The room in host memory is not free before the write has ended.
    evicting = begin(tree, "d", "two")
    assert evicting.moves == [move("c", GPU, DISK, "two")]
    for grant in (running, evicting):
        end(tree, grant)
    assert found(tree, "a", "two") == [HOST]


@pytest.mark.parametrize("event", ["confirmed", "lost instance"])
def test_a_copy_that_its_writer_has_written_is_evicted_like_any_other(event):
    tree = tree_of(1, 1)
    ask(tree, "c", "two")
    running = swapping_out(tree)
    end(tree, begin(tree, "d", "two"))
    assert copy_of(tree, "a", HOST) is not None
    if event == "confirmed":
        end(tree, running)
    else:
        tree.remove_instance("one")
    ask(tree, "e", "two")
    assert copy_of(tree, "a", HOST) is None
    assert copy_of(tree, "d", HOST) is not None
    check_integrity(tree)


def test_a_deleted_copy_is_dropped_by_the_instance_that_is_still_writing_it():
    tree = tree_of(1, 0, 1)
    running = swapping_out(tree)
    tree.delete("a")
    assert take_pending_moves(tree, "two") == []
    assert take_pending_moves(tree) == [move("a", DISK, None)]
    # The write may reach the engine behind the drop, so there is one more.
    end(tree, running)
    assert take_pending_moves(tree) == [move("a", DISK, None)]


def test_a_failed_plan_may_still_write_what_it_was_to_keep():
    tree = tree_of(0, 0, 2)
    tree.grants.complete(begin(tree, "a"), kept=False)
    assert take_pending_moves(tree, "two") == []
    assert take_pending_moves(tree, "one") == [move("a", DISK, None)]


@pytest.mark.parametrize("prefilled", [False, True])
def test_a_plans_drops_are_repeated_by_its_instance_if_it_did_not_report_the_end(prefilled):
    # It may still have them in its queue, and only its own moves come behind them.
    tree = tree_of(1, 0, 1)
    end(tree, swapping_out(tree))
    evicting = begin(tree, "c")
    assert evicting.moves == [move("a", DISK, None), move("b", GPU, DISK, "one")]
    tree.grants.complete(evicting, kept=prefilled)
    assert take_pending_moves(tree, "two") == []
    again = [move("b", DISK, DISK, evict=False), move("a", DISK, None)] if prefilled else evicting.moves
    assert take_pending_moves(tree, "one") == again


@pytest.mark.parametrize("instance", ["one", "two"])
def test_a_file_is_not_written_again_while_moves_under_way_delete_it(instance):
    tree = tree_of(1, 0, 1)
    end(tree, swapping_out(tree))
    deleting = begin(tree, "C", "two")
    tree.delete("a")
    assert taken(tree, "two").moves == [move("a", DISK, None)]
    ask(tree, "a", instance)
    assert move("a", GPU, DISK, instance) not in ask(tree, "b", instance).moves
    assert found(tree, "a", instance) == []
    tree.grants.complete(deleting, kept=False)


def test_what_is_to_be_deleted_by_one_instance_is_not_written_by_another():
    tree = tree_of(1, 0, 1)
    running = swapping_out(tree)
    tree.delete("a")
    ask(tree, "a", "two")
    assert ask(tree, "b", "two").moves == [move("a", GPU, None, "two")]
    end(tree, running)


def test_persisting_copies_what_is_being_written_behind_the_write():
    tree = tree_of(1, 4, 0)
    tree.tiers.locations[""].disk.capacity = 4
    running = swapping_out(tree)
    tree.persist()
    assert not [order for order in take_pending_moves(tree, "two") if order.node == key("a").hex()]
    assert move("a", HOST, DISK, evict=False) in deliver(tree, "one")
    assert found(tree, "a", "two") == [DISK]
    end(tree, running)


# Lost instances


@pytest.mark.parametrize("there", [True, False])
def test_another_instance_looks_for_the_copies_of_a_lost_one(there):
    tree = tree_of(1, 0, 4)
    swapping_out(tree)
    tree.remove_instance("one")
    check_integrity(tree)
    batch = taken(tree, "two")
    assert batch.moves == [move("a", DISK, DISK, evict=False)]
    # It has not said yet that the copy is there.
    assert found(tree, "a", "two") == []
    tree.tiers.confirm(batch, [] if there else [(key("a"), DISK)], tree.grants.tick)
    check_integrity(tree)
    assert found(tree, "a", "two") == ([DISK] if there else [])
    assert take_pending_moves(tree, "two") == ([] if there else [move("a", DISK, None)])


def test_what_a_lost_instance_was_to_drop_is_dropped_by_another():
    tree = tree_of(1, 0, 1)
    running = swapping_out(tree)
    tree.delete("a")
    tree.remove_instance("one")
    assert running.revoked
    assert take_pending_moves(tree, "two") == [move("a", DISK, None)]


def test_a_copy_of_a_lost_instance_is_dropped_when_the_plan_that_uses_it_ends():
    tree = tree_of(1, 0, 4)
    running = swapping_out(tree)
    using = begin(tree, "a", "two")
    tree.grants.lose("one", [(key("a"), DISK)])
    end(tree, running, None)
    tree.remove_instance("one")
    end(tree, using)
    assert take_pending_moves(tree, "two") == [move("a", DISK, None)]


def test_a_delivery_of_a_lost_instance_ends_with_it():
    tree = tree_of(2, 4, write_through=True)
    ask(tree, "a")
    batch = taken(tree, "one")
    assert [order.target for order in batch.moves] == [HOST]
    tree.remove_instance("one")
    tree.tiers.add_instance("one")
    assert tree.tiers.confirm(batch, (), tree.grants.tick) == []
    tree.tiers.under_way.give_back(batch, tree.grants.tick)
    check_integrity(tree)
    assert deliver(tree, "two") == [move("a", HOST, HOST, evict=False)]


# Restarts


def test_a_snapshot_has_confirmed_copies_only():
    tree = tree_of(1, 4)
    running = swapping_out(tree)
    node = tree.registry.nodes[key("a")]
    assert record_of(node).caches == ()
    end(tree, running)
    assert record_of(node).caches == ("host@",)


def test_a_report_of_the_tiers_confirms_the_copies_of_a_lost_instance():
    tree = tree_of(1, 0, 4)
    swapping_out(tree)
    tree.remove_instance("one")
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    assert found(tree, "a", "two") == [DISK]
    assert take_pending_moves(tree, "two") == []


def test_a_report_of_the_tiers_does_not_confirm_a_copy_whose_writer_may_replace_it():
    tree = tree_of(1, 0, 4)
    running = swapping_out(tree)
    restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))])
    assert found(tree, "a", "two") == []
    end(tree, running)
    assert found(tree, "a", "two") == [DISK]


def test_a_reported_file_that_is_about_to_be_deleted_is_not_restored():
    tree = tree_of(1, 0, 1)
    end(tree, swapping_out(tree))
    tree.delete("a")
    batch = taken(tree, "two")
    assert restore(tree, [ResidencyReport(DISK, (HeldNode(TENANT, ("a",), 1),))]).refused == 1
    tree.tiers.confirm(batch, (), tree.grants.tick)
    assert found(tree, "a") == []
