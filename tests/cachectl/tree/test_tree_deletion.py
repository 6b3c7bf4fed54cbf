"""Deletion removes a document from all paths and tiers, with everything behind it."""

from collections import Counter

import pytest
from controller_integrity import check_integrity
from tree_cases import (
    GPU,
    HOST,
    ask,
    begin,
    found,
    key,
    move,
    take_pending_moves,
    tree_of,
)

from protocol.plans import PlannedNode


def test_a_deleted_document_leaves_all_tiers_and_paths_with_everything_behind_it():
    tree = tree_of(4, 6, 6)
    for path in ("axb", "xC", "D", "yx", "E", "yx"):
        ask(tree, path, "one")
    ask(tree, "axb", "two")
    before = {node.content: node.tokens for node in tree.registry.nodes.values()}
    assert {"a", "x", "b", "C", "y"} <= before.keys()
    expected = sum("x" in [node.content for node in bottom.path] for bottom in tree.registry.nodes.values())
    assert tree.delete("x") == expected == 5
    check_integrity(tree)
    assert not {"x", "b", "C"} & {node.content for node in tree.registry.nodes.values()}
    assert {"a", "y"} <= {node.content for node in tree.registry.nodes.values()}
    assert tree.delete("x") == 0


def test_each_copy_of_a_deleted_document_is_dropped_by_a_pending_move():
    tree = tree_of(2, 2)
    for path in ("ab", "C", "ab"):
        ask(tree, path, "one")
    ask(tree, "ab", "two")
    tree.delete("b")
    tree.delete("a")
    shared = [move(path, HOST, None) for path in ("a", "ab")]
    # The first instance to ask drops the shared tiers' copies. Each drops those of its own GPU.
    assert Counter(take_pending_moves(tree, "one")) == Counter(
        [*shared, *(move(path, GPU, None, "one") for path in ("a", "ab"))]
    )
    assert Counter(take_pending_moves(tree, "two")) == Counter(move(path, GPU, None, "two") for path in ("a", "ab"))
    assert take_pending_moves(tree, "one") == take_pending_moves(tree, "two") == []


def test_a_document_can_be_deleted_in_one_namespace():
    tree = tree_of(10)
    for namespace in ("x", "y"):
        ask(tree, "ab", namespace=namespace)
    assert tree.delete("a", "x") == 2
    assert tree.delete("a", "unknown") == 0
    assert found(tree, "a", namespace="x") == []
    assert found(tree, "ab", namespace="y") == [GPU, GPU]
    assert tree.delete("b") == 1
    assert found(tree, "ab", namespace="y") == [GPU]
    check_integrity(tree)


def test_a_document_deleted_in_use_is_dropped_when_its_plan_completes():
    tree = tree_of(4)
    ask(tree, "ab")
    running = begin(tree, "abc")
    assert tree.delete("a") == 3
    check_integrity(tree)
    assert found(tree, "abc") == []
    assert take_pending_moves(tree) == []
    assert tree.tiers.gpu("one").used == 3
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert tree.tiers.gpu("one").used == 0
    assert Counter(take_pending_moves(tree)) == Counter(move(path, GPU, None, "one") for path in ("a", "ab", "abc"))


def test_a_deleted_document_is_dropped_when_its_last_plan_completes():
    tree = tree_of(4)
    ask(tree, "ab")
    first, second = begin(tree, "ab"), begin(tree, "a")
    tree.delete("a")
    tree.grants.complete(first, kept=True)
    check_integrity(tree)
    assert take_pending_moves(tree) == [move("ab", GPU, None, "one")]
    tree.grants.complete(second, kept=True)
    assert take_pending_moves(tree) == [move("a", GPU, None, "one")]


@pytest.mark.parametrize("old_first", [True, False])
def test_a_deleted_document_is_not_kept_again_while_a_plan_uses_its_old_copy(old_first):
    # Both would have the same key, and dropping the old copy would drop the new one too.
    tree = tree_of(4)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    new = begin(tree, "a")
    assert new.documents[0] == PlannedNode(key("a").hex(), 1, None, None)
    for grant in (old, new) if old_first else (new, old):
        tree.grants.complete(grant, kept=True)
        check_integrity(tree)
    assert not tree.registry.nodes
    assert take_pending_moves(tree) == [move("a", GPU, None, "one")]
    ask(tree, "a")
    assert found(tree, "a") == [GPU]


def test_a_deleted_document_is_dropped_if_its_next_plan_fails():
    tree = tree_of(4)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    new = begin(tree, "a")
    tree.grants.complete(old, kept=True)
    tree.grants.complete(new, kept=False)
    assert not tree.registry.nodes
    assert take_pending_moves(tree) == [move("a", GPU, None, "one")]


def test_evicting_a_deleted_documents_new_copy_spares_the_old_one_in_use():
    tree = tree_of(2)
    ask(tree, "a")
    old = begin(tree, "a")
    tree.delete("a")
    ask(tree, "a")
    grant = begin(tree, "b")
    assert move("a", GPU, None, "one") not in grant.moves
    for running in (old, grant):
        tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert (move("a", GPU, None, "one") in take_pending_moves(tree)) != (found(tree, "a") == [GPU])


def test_clear_drops_everything_including_pins():
    tree = tree_of(4, 4)
    ask(tree, "sa", pinned=1)
    ask(tree, "sb", pinned=1)
    running = begin(tree, "sab", "two", namespace="other")
    assert tree.clear() == 6
    check_integrity(tree)
    assert not tree.registry.nodes
    tree.grants.complete(running, kept=True)
    check_integrity(tree)
    assert [cache.used for cache in tree.tiers] == [0, 0, 0, 0]


def test_a_deletion_drops_nodes_in_the_order_of_their_creation():
    tree = tree_of(100)
    namespaces = [f"tenant {number}" for number in range(20)]
    for namespace in namespaces:
        ask(tree, "a", namespace=namespace)
    tree.delete("a")
    assert [move.node for move in take_pending_moves(tree)] == [key("a", namespace).hex() for namespace in namespaces]
