"""What lies on another machine is read there, where that is sooner than computing it."""

import pytest
from controller_integrity import check_integrity
from tree_cases import (
    DISK,
    GPU,
    HOST,
    address_of,
    ask,
    begin,
    deliver,
    found,
    host_of,
    key,
    linear_cost,
    serving_at,
    tree_of,
)

from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree

ELSEWHERE = "elsewhere"


def near_and_far(gpu: int = 9, host: int = 9, disk: int = 0, **changes) -> KnowledgeTree:
    """A tree of ``near``, and of ``far`` and ``further`` on another machine, which serve each other."""
    far = ["far", "further"]
    return tree_of(gpu, host, disk, instances=["near"], elsewhere=far, cost=linear_cost, serving=True, **changes)


def prefilled_elsewhere(path: str, **changes) -> KnowledgeTree:
    """Such a tree, with a path in the host memory of ``far``'s machine alone."""
    tree = near_and_far(write_through=True, **changes)
    ask(tree, path, "far")
    deliver(tree, "far")
    assert found(tree, path, "further") == [HOST] * len(path)
    return tree


def origins(grant: Grant) -> list[str]:
    """Where each document of a plan comes from: a tier, a location and a tier, or ``computed``."""
    return [
        f"{step.peer.location} {step.peer.tier}" if step.peer is not None else str(step.source or "computed")
        for step in grant.documents
    ]


def test_what_another_machine_holds_is_read_there_and_kept_here():
    tree = prefilled_elsewhere("ab")
    grant = begin(tree, "abc", "near")
    assert origins(grant) == ["elsewhere host", "elsewhere host", "computed"]
    assert [step.kept for step in grant.documents] == [GPU] * 3
    tree.grants.complete(grant, kept=True, unwritten=())
    assert origins(begin(tree, "abc", "near")) == ["gpu"] * 3
    check_integrity(tree)


def test_an_instance_reads_its_own_copies_first():
    tree = prefilled_elsewhere("ab")
    assert origins(begin(tree, "ab", "far")) == ["gpu", "gpu"]
    assert origins(begin(tree, "ab", "further")) == ["host", "host"]
    ask(tree, "a", "near")
    assert origins(begin(tree, "ab", "near")) == ["gpu", "elsewhere host"]


def test_a_plan_names_the_address_and_the_pages():
    tree = prefilled_elsewhere("a", arena=PageAllocator(9, 1))
    (node,) = begin(tree, "a", "near").documents
    copy = tree.registry.nodes[key("a")].copy_in(host_of(tree, ELSEWHERE))
    assert node.source is None
    assert node.peer is not None
    assert (node.peer.location, node.peer.addresses) == (ELSEWHERE, (address_of("far"),))
    assert (node.peer.tier, node.peer.pages) == (HOST, copy.pages)
    assert node.loaded_from is HOST


def test_what_does_not_fit_into_the_gpu_goes_to_the_own_host_memory():
    tree = prefilled_elsewhere("A", gpu=2, arena=PageAllocator(9, 1))
    held = begin(tree, "X", "near")
    grant = begin(tree, "A", "near")
    (step,) = grant.documents
    assert (step.kept, step.peer is not None) == (HOST, True)
    own = tree.registry.nodes[key("A")].copy_in(host_of(tree))
    assert step.pages == own.pages
    assert step.saved_to is HOST
    for each in (held, grant):
        tree.grants.complete(each, kept=True, unwritten=())
    assert found(tree, "A", "near") == [HOST]
    check_integrity(tree)


def test_host_memory_is_read_rather_than_a_disk():
    tree = near_and_far(gpu=9, host=9, disk=9, write_through=True)
    ask(tree, "a", "far")
    deliver(tree, "far")
    assert len(tree.registry.nodes[key("a")].copies) == 3
    assert origins(begin(tree, "a", "near")) == ["elsewhere host"]
    tree.grants.lose_at(ELSEWHERE, [(key("a"), HOST)])
    assert DISK in {copy.cache.tier for copy in tree.registry.nodes[key("a")].copies}


@pytest.mark.parametrize(("peer_token_s", "read"), [(0.9, True), (1.1, False)])
def test_what_is_computed_sooner_is_not_read(peer_token_s, read):
    tree = prefilled_elsewhere("ab", load_s=0.5, peer_token_s=peer_token_s)
    # Each token takes a second to compute.
    assert origins(begin(tree, "ab", "near")) == (["elsewhere host"] * 2 if read else ["computed"] * 2)


def test_measured_seconds_replace_the_assumed_ones():
    tree = prefilled_elsewhere("ab", load_s=0.5, peer_token_s=0.4)
    for _ in range(20):
        tree.tiers.links.measured("near", ELSEWHERE, HOST, tokens=10, seconds=11.0)
    assert origins(begin(tree, "ab", "near")) == ["computed", "computed"]


def test_nothing_unconfirmed_is_read():
    tree = near_and_far(gpu=1)
    ask(tree, "a", "far")
    begin(tree, "b", "far")
    assert {copy.confirmed for copy in tree.registry.nodes[key("a")].copies} == {False}
    assert origins(begin(tree, "a", "near")) == ["computed"]


def test_nothing_is_read_over_a_closed_link():
    tree = prefilled_elsewhere("a")
    links = tree.tiers.links
    links.close("near", ELSEWHERE, address_of("far"))
    assert origins(begin(tree, "a", "near")) == ["computed"]
    tree.grants.complete(next(iter(tree.grants.open.values())), kept=False)
    links.half_open("near", ELSEWHERE)
    assert origins(begin(tree, "a", "near")) == ["elsewhere host"]


def test_after_a_failure_another_instance_is_read_from():
    tree = prefilled_elsewhere("a")
    links = tree.tiers.links
    assert links.addresses(ELSEWHERE) == (address_of("far"),)
    # Two readers fail at the same one.
    for reader in ("near", "another"):
        links.close(reader, ELSEWHERE, address_of("far"))
        assert links.addresses(ELSEWHERE) == (address_of("further"),)


def test_an_instance_that_takes_no_part_reads_nothing():
    tree = prefilled_elsewhere("a")
    tree.tiers.add_instance("keyless", "")
    assert origins(begin(tree, "a", "keyless")) == ["computed"]
    assert not tree.tiers.links.serves(ELSEWHERE, "keyless")


def test_links_of_a_location_that_is_gone_are_forgotten():
    tree = prefilled_elsewhere("a")
    links = tree.tiers.links
    links.measured("near", ELSEWHERE, HOST, tokens=10, seconds=100.0)
    links.close("near", ELSEWHERE, address_of("far"))
    for instance in ("far", "further"):
        tree.remove_instance(instance)
    tree.remove_location(ELSEWHERE)
    tree.tiers.add_location(ELSEWHERE, 9, 0)
    tree.tiers.add_instance("far", ELSEWHERE, serving_at("far"))
    assert links.serves(ELSEWHERE, "near")
    assert links.seconds("near", ELSEWHERE, 10, HOST) < 1


def test_reads_from_a_slow_disk_do_not_make_host_memory_look_slow():
    tree = near_and_far(load_s=0.1, peer_token_s=0.1)
    links = tree.tiers.links
    links.measured("near", ELSEWHERE, DISK, tokens=10, seconds=100.0)
    assert links.seconds("near", ELSEWHERE, 10, HOST) == pytest.approx(1.002)
    assert links.seconds("near", ELSEWHERE, 10, DISK) == pytest.approx(100.0)
    links.forget_rates("near", ELSEWHERE)
    assert links.seconds("near", ELSEWHERE, 10, DISK, slower_s=2.0) == pytest.approx(3.002)


def test_a_machine_that_no_instance_serves_is_not_read_from():
    tree = prefilled_elsewhere("a")
    for instance in ("far", "further"):
        tree.remove_instance(instance)
    assert not tree.tiers.links.exist
    assert origins(begin(tree, "a", "near")) == ["computed"]


def test_what_a_plan_reads_is_not_evicted_meanwhile():
    tree = prefilled_elsewhere("a", gpu=1, host=1)
    begin(tree, "a", "near")
    ask(tree, "b", "far")
    deliver(tree, "far")
    assert tree.registry.nodes[key("a")].copy_in(host_of(tree, ELSEWHERE)) is not None


def test_a_copy_that_its_machine_does_not_have_is_removed_there_alone():
    tree = prefilled_elsewhere("a")
    ask(tree, "a", "near")
    tree.grants.lose_at(ELSEWHERE, [(key("a"), HOST), (key("unknown"), HOST)])
    tree.grants.lose_at("unknown", [(key("a"), HOST)])
    places = {(copy.cache.owner, copy.cache.tier) for copy in tree.registry.nodes[key("a")].copies}
    assert places >= {("near", GPU), ("far", GPU)}
    assert (ELSEWHERE, HOST) not in places
    # What may be left of it there is dropped.
    assert [move.location for move in deliver(tree, "far") if move.source is HOST] == [ELSEWHERE]
    check_integrity(tree)


def test_no_read_is_planned_that_takes_longer_than_it_may():
    tree = prefilled_elsewhere("abc", load_s=0.01, peer_token_s=0.1)
    # Each token takes 102 ms, and half a timeout is planned at most.
    for timeout_s, read in ((10.0, 3), (0.5, 2), (0.25, 1), (0.1, 0)):
        tree.tiers.links.join("near", ["", ""], serving_at("near", timeout_s))
        grant = begin(tree, "abc", "near")
        assert origins(grant) == ["elsewhere host"] * read + ["computed"] * (3 - read)
        tree.grants.complete(grant, kept=False)


def swapped_out(tree: KnowledgeTree) -> bool:
    """Whether ``a`` is in the own host memory of ``near`` once another document needs its room in the GPU."""
    ask(tree, "a", "near")
    assert found(tree, "a", "near") == [GPU]
    ask(tree, "b", "near")
    assert found(tree, "b", "near") == [GPU]
    check_integrity(tree)
    return tree.registry.nodes[key("a")].copy_in(host_of(tree)) is not None


def test_what_another_machine_serves_is_not_swapped_out():
    tree = prefilled_elsewhere("a", gpu=1)
    assert not swapped_out(tree)
    assert origins(begin(tree, "a", "near")) == ["elsewhere host"]


def test_what_no_machine_serves_any_more_is_swapped_out():
    tree = prefilled_elsewhere("a", gpu=1)
    ask(tree, "a", "near")
    tree.tiers.links.close("near", ELSEWHERE, address_of("far"))
    assert swapped_out(tree)


def test_what_takes_long_to_read_is_swapped_out():
    # Each token takes a second to compute.
    assert swapped_out(prefilled_elsewhere("a", gpu=1, peer_token_s=0.6))
    assert not swapped_out(prefilled_elsewhere("a", gpu=1, peer_token_s=0.4))


def test_what_others_stand_behind_is_swapped_out():
    tree = prefilled_elsewhere("a", gpu=2)
    ask(tree, "ab", "near")
    # Behind a copy elsewhere, nothing in the own host memory could be loaded.
    ask(tree, "C", "near")
    assert found(tree, "ab", "near") == [HOST, HOST]
    check_integrity(tree)
