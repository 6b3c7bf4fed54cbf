"""Eviction swaps documents out to slower tiers, children before parents, and drops what loses its support."""

import pytest
from controller_integrity import check_integrity
from tree_cases import DISK, GPU, HOST, TENANT, ask, begin, disk_of, found, key, move, take_pending_moves, tree_of

from protocol.kv import HeldNode


def test_evicted_nodes_move_down_tier_by_tier_and_leave_the_last():
    tree = tree_of(1, 1, 1)
    moves = [ask(tree, path).moves for path in "abcd"]
    assert moves[:3] == [
        [],
        [move("a", GPU, HOST, "one")],
        [move("a", HOST, DISK), move("b", GPU, HOST, "one")],
    ]
    assert moves[3] == [move("a", DISK, None), move("b", HOST, DISK), move("c", GPU, HOST, "one")]
    assert [found(tree, path) for path in "abcd"] == [[], [DISK], [HOST], [GPU]]


def test_a_node_is_swapped_out_once():
    tree = tree_of(1, 3)
    ask(tree, "a")
    assert ask(tree, "b").moves == [move("a", GPU, HOST, "one")]
    assert ask(tree, "a").moves == [move("b", GPU, HOST, "one")]
    # Host memory kept its copy of a while a was in the GPU.
    assert ask(tree, "c").moves == [move("a", GPU, None, "one")]
    assert found(tree, "a") == [HOST]


def test_a_node_that_another_instance_swapped_out_is_not_copied_again():
    tree = tree_of(1, 2)
    ask(tree, "a", "one")
    ask(tree, "a", "two")
    assert ask(tree, "b", "one").moves == [move("a", GPU, HOST, "one")]
    assert ask(tree, "c", "two").moves == [move("a", GPU, None, "two")]


def test_a_node_too_large_for_host_memory_is_swapped_to_disk():
    tree = tree_of(2, 1, 2)
    ask(tree, "A")
    assert ask(tree, "B").moves == [move("A", GPU, DISK, "one")]
    assert found(tree, "A") == [DISK]


def test_a_parent_is_not_evicted_before_its_children():
    tree = tree_of(3)
    ask(tree, "abc")
    assert ask(tree, "D").moves == [move("abc", GPU, None, "one"), move("ab", GPU, None, "one")]
    assert found(tree, "abc") == [GPU]


def test_a_parent_may_leave_the_gpu_if_its_child_is_in_host_only():
    tree = tree_of(1, 2)
    assert [step.kept for step in ask(tree, "ab").documents] == [GPU, HOST]
    assert ask(tree, "c").moves == [move("a", GPU, HOST, "one")]
    assert found(tree, "ab") == [HOST, HOST]


def test_an_evicted_parent_takes_the_children_that_only_it_supported():
    # A is in the GPU, and b behind it is in host memory, which is too small for A. When A leaves, nothing supports b.
    tree = tree_of(2, 1)
    assert [step.kept for step in ask(tree, "Ab").documents] == [GPU, HOST]
    ask(tree, "C")
    assert found(tree, "Ab") == []
    assert list(tree.registry.nodes) == [key("C")]
    assert tree.tiers.locations[""].host.used == 0


def test_unsupported_children_are_dropped_before_their_room_is_used():
    # As above, with c on disk behind b. The plan that evicts A also needs the room of b and c.
    tree = tree_of(2, 1, 1)
    ask(tree, "Abc")
    grant = begin(tree, "Cde")
    assert [step.kept for step in grant.documents] == [GPU, HOST, DISK]
    assert {move("Ab", HOST, None), move("Abc", DISK, None)} <= set(grant.moves)
    tree.grants.complete(grant, kept=True, unwritten=())
    assert take_pending_moves(tree) == []


def test_children_stay_while_another_gpu_supports_them():
    tree = tree_of(2, 1)
    ask(tree, "Ab", "one")
    ask(tree, "A", "two")
    ask(tree, "C", "one")
    assert found(tree, "Ab", "one") == []
    assert found(tree, "Ab", "two") == [GPU, HOST]


def test_a_document_larger_than_a_tier_evicts_nothing_from_it():
    tree = tree_of(1, 1)
    for path in "ab":
        ask(tree, path)
    assert ask(tree, "C").moves == []
    assert [found(tree, path) for path in "ab"] == [[HOST], [GPU]]


@pytest.mark.parametrize("policy", ["LRU", "PGDSF", "FORESIGHT"])
def test_only_leaves_of_a_restored_tree_are_looked_at(policy):
    tree = tree_of(0, 0, 9, policy=policy)
    paths = ["a", "d", "g", "ab", "de", "gh", "abc", "def", "ghi"]
    disk = disk_of(tree)
    assert all(tree.insert(HeldNode(TENANT, tuple(path), 1), disk) for path in paths)
    check_integrity(tree)

    def looked_at() -> set[str]:
        paths = {copy.node: [node.content for node in copy.node.path] for copy in disk.spare(9)}
        in_order = {node for node in tree.registry.nodes.values() for copy in node.copies if copy.ticket}
        assert paths.keys() == in_order
        return {"".join(path) for path in paths.values()}

    assert looked_at() == {"abc", "def", "ghi"}
    # A parent is looked at again when it has no child any more.
    tree.delete("c")
    assert looked_at() == {"ab", "def", "ghi"}
    check_integrity(tree)
