"""Machines with one disk in common: a folder that both mount, or an object store."""

from controller_integrity import check_integrity
from tree_cases import (
    DISK,
    GPU,
    HOST,
    ask,
    begin,
    disk_of,
    found,
    host_of,
    key,
    linear_cost,
    serving_at,
    take_pending_moves,
    tree_of,
)

from cachectl.tree.knowledge_tree import KnowledgeTree

ELSEWHERE = "elsewhere"
COMMON = "common"


def with_one_disk(gpu: int, host: int = 0, disk: int = 9, **changes) -> KnowledgeTree:
    """A tree of the instance ``near``, and of ``far`` on another machine. Both have the same disk."""
    return tree_of(
        gpu, host, disk, instances=["near"], elsewhere=["far"], cost=linear_cost, disk_name=COMMON, **changes
    )


def test_what_one_machine_writes_to_the_disk_all_find():
    tree = with_one_disk(gpu=1)
    ask(tree, "a", "near")
    moves = ask(tree, "b", "near").moves
    assert [(move.target, move.instance, move.location) for move in moves] == [(DISK, "near", "")]
    assert found(tree, "a", "near") == found(tree, "a", "far") == [DISK]
    assert disk_of(tree) is disk_of(tree, ELSEWHERE)
    check_integrity(tree)


def test_no_other_machine_finds_what_is_not_written_yet():
    tree = with_one_disk(gpu=1)
    ask(tree, "a", "near")
    writing = begin(tree, "b", "near")
    assert found(tree, "a", "far") == []
    tree.grants.complete(writing, kept=True, unwritten=())
    assert found(tree, "a", "far") == [DISK]


def test_any_machine_deletes_a_file():
    tree = with_one_disk(gpu=1)
    ask(tree, "a", "near")
    ask(tree, "b", "near")
    tree.delete("a")
    assert tree.tiers.has_moves("near")
    drops = [move for move in take_pending_moves(tree, "far") if move.source is DISK]
    assert [(move.node, move.location) for move in drops] == [(key("a").hex(), COMMON)]
    assert not tree.tiers.has_moves("far")
    assert not [move for move in take_pending_moves(tree, "near") if move.source is DISK]


def test_a_file_that_is_being_deleted_is_written_by_none():
    tree = with_one_disk(gpu=1)
    ask(tree, "a", "near")
    ask(tree, "b", "near")
    tree.delete("a")
    deletes = begin(tree, "c", "near")
    assert (DISK, None) in {(move.source, move.target) for move in deletes.moves}
    ask(tree, "a", "far")
    assert tree.tiers.under_way.may_delete(tree.registry.nodes[key("a")], disk_of(tree, ELSEWHERE))


def test_each_machine_supports_what_is_on_the_disk():
    tree = with_one_disk(gpu=1, host=1)
    for path in ("A", "Ab", "Xy"):
        ask(tree, path, "near")
    node = tree.registry.nodes.get(key("A"))
    assert node is None or not host_of(tree, ELSEWHERE).copies
    check_integrity(tree)


def test_a_machine_leaves_the_disk_to_the_others():
    tree = with_one_disk(gpu=1, host=1)
    for path in ("a", "b", "c"):
        ask(tree, path, "far")
    assert found(tree, "a", "far") == found(tree, "a", "near") == [DISK]
    tree.remove_instance("far")
    assert tree.tiers.deserted == [ELSEWHERE]
    tree.remove_location(ELSEWHERE)
    assert found(tree, "a", "near") == [DISK]
    assert found(tree, "b", "near") == []
    assert tree.tiers.places == {"", COMMON}
    check_integrity(tree)


def test_what_a_lost_machine_was_to_write_is_given_up():
    tree = with_one_disk(gpu=9, host=9, write_through=False)
    ask(tree, "a", "far")
    tree.persist()
    node = tree.registry.nodes[key("a")]
    assert node.copy_in(disk_of(tree)).writer == "far"
    tree.remove_instance("far")
    tree.remove_location(ELSEWHERE)
    assert disk_of(tree).copies == 0
    check_integrity(tree)


def test_what_a_lost_machine_was_to_copy_from_its_memory_is_given_up():
    tree = with_one_disk(gpu=1, host=1)
    for path in ("a", "b"):
        ask(tree, path, "far")
    # The delivery that moves "a" on to the disk is never taken.
    tree.persist()
    assert disk_of(tree).copies
    tree.remove_instance("far")
    tree.remove_location(ELSEWHERE)
    assert disk_of(tree).copies == 0
    check_integrity(tree)


def test_the_disk_goes_with_the_last_machine():
    tree = with_one_disk(gpu=1)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.remove_instance("near")
    tree.remove_location("")
    assert found(tree, "a", "far") == [DISK]
    tree.tiers.add_location("third", 0, 9)
    tree.tiers.add_instance("next", "third")
    tree.remove_instance("far")
    tree.remove_location(ELSEWHERE)
    assert tree.tiers.places == {"third"}
    assert not tree.registry.nodes


def test_everything_is_kept_once():
    tree = with_one_disk(gpu=9)
    ask(tree, "ab", "near")
    ask(tree, "ac", "far")
    tree.persist()
    assert disk_of(tree).copies == 3
    check_integrity(tree)


def test_a_loss_report_concerns_the_common_disk():
    tree = with_one_disk(gpu=1)
    for path in ("a", "b"):
        ask(tree, path, "near")
    tree.grants.lose("far", [(key("a"), DISK)])
    assert found(tree, "a", "near") == []
    # The file may be there after all: a network file system may show it late.
    assert [(move.source, move.location) for move in tree.tiers.pending_moves] == [(DISK, COMMON)]


def test_prefixes_go_on_behind_what_a_peer_holds():
    tree = with_one_disk(gpu=2, host=1, serving=True, peer_token_s=0.01, load_s=0.01)
    for path in ("ab", "xy"):
        ask(tree, path, "far")
    assert found(tree, "ab", "far") == [HOST, DISK]
    assert found(tree, "ab", "near") == []
    documents = begin(tree, "ab", "near").documents
    assert [(step.source, step.peer.location if step.peer else None) for step in documents] == [
        (None, ELSEWHERE),
        (DISK, None),
    ]
    assert [step.kept for step in documents] == [GPU, GPU]
    check_integrity(tree)


def test_a_machine_without_the_disk_reads_it_at_one_that_has_it():
    tree = with_one_disk(gpu=1, serving=True, peer_token_s=0.01, load_s=0.01)
    tree.tiers.add_location("third", 0, 9)
    tree.tiers.add_instance("other", "third")
    tree.tiers.links.join("other", ("third", "third"), serving_at("other"))
    for path in ("a", "b"):
        ask(tree, path, "near")
    (step,) = begin(tree, "a", "other").documents
    assert step.peer.location == COMMON
    assert tree.tiers.links.addresses(COMMON) == ("peer:near",)
    tree.remove_instance("near")
    assert tree.tiers.links.addresses(COMMON) == ("peer:far",)
    tree.grants.lose_at(COMMON, [(key("a"), DISK)])
    assert found(tree, "a", "far") == []


def test_the_disk_counts_once_until_the_last_machine_has_gone():
    tree = tree_of(1, 2, 4, instances=["near"], elsewhere=["far"], disk_name="common")
    assert tree.tiers.capacity == 2 * 1 + 2 * 2 + 4
    tree.remove_instance("far")
    tree.remove_location("elsewhere")
    assert tree.tiers.capacity == sum(cache.capacity for cache in tree.tiers) == 1 + 2 + 4
