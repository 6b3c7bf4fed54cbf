"""Snapshots carry uses, pins, deletions and the tiers of each node from one controller to the next."""

import pytest
from controller_under_test import TOKENS, Clock, ask, at, checked_controllers, key, report

from cachectl.runtime.recovery import SnapshotSaver
from cachectl.tree.snapshot import NoStore, Snapshot
from protocol.cache import CachePath, DocumentDeletion
from protocol.kv import HeldNode, Pages, ResidencyReport
from protocol.tiers import Tier


class Memory:
    """A snapshot store in memory, which refuses to store while it is ``away``."""

    keeps = True

    def __init__(self) -> None:
        self.kept = Snapshot()
        self.away = False
        self.changes: list[set[str]] = []

    async def load(self) -> Snapshot:
        return self.kept

    async def keep(self, before: Snapshot, now: Snapshot) -> bool:
        if self.away:
            return False
        changed = {name for name, node in now.nodes.items() if before.nodes.get(name) != node}
        self.changes.append(changed | (before.nodes.keys() - now.nodes.keys()))
        self.kept = now
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def build(clock):
    with checked_controllers(clock) as build:
        yield build


async def use(controller, query_id: str, documents: str) -> None:
    await controller.admit(ask(query_id, documents))
    await controller.complete(report(query_id))


def held(*documents: str) -> ResidencyReport:
    return ResidencyReport(Tier.DISK, tuple(HeldNode("tenant", tuple(path), TOKENS) for path in documents))


async def kept_of(controller, store: Memory) -> None:
    await SnapshotSaver(controller.recovery, store).save()


async def test_a_snapshot_carries_uses_pins_and_tiers_to_the_next_controller(build):
    first, store = build(disk=100, swap="write_through", location="rack"), Memory()
    for count, document in enumerate("abc", start=1):
        for number in range(count):
            await use(first, f"{document}{number}", document)
    await first.pin(CachePath("tenant", ("b",)))
    await kept_of(first, store)
    record = store.kept.nodes[key("c")]
    assert (record.path, record.accesses, record.pinned) == (("c",), 3, 0)
    assert set(record.caches) == {"gpu@one", "disk@rack"}

    second = build(disk=100)
    second.recovery.recall(store.kept)
    second.recovery.restore([held("a", "b", "c")])
    nodes = {node.content: node for node in (await second.tree(1, 1000)).namespaces["tenant"]}
    assert [nodes[name].frequency for name in "abc"] == [1, 2, 3]
    assert [nodes[name].pinned for name in "abc"] == [False, True, False]
    # Ages count from the last request of the former controller.
    assert [nodes[name].requests_ago for name in "abc"] == [5, 3, 0]


async def test_nodes_that_no_tier_holds_are_forgotten(build):
    first, store = build(disk=100), Memory()
    await use(first, "1", "a")
    await first.pin(CachePath("tenant", ("a",)))
    await kept_of(first, store)
    second = build(disk=100)
    second.recovery.recall(store.kept)
    second.recovery.restore([])
    assert (await second.tree(1, 1000)).nodes == 0
    saver = SnapshotSaver(second.recovery, store)
    await saver.save()
    assert store.kept.nodes == {}


async def test_a_query_from_before_a_deletion_caches_nothing_after_a_restart(build):
    first, store = build(), Memory()
    await first.delete_document(DocumentDeletion(("a",), "tenant", *at(10)))
    await kept_of(first, store)
    second = build()
    second.recovery.recall(store.kept)
    assert (await second.admit(ask("late", "a", found_at=at(9)))).unshared
    assert not (await second.admit(ask("anew", "a", found_at=at(10)))).unshared
    for query_id in ("late", "anew"):
        await second.complete(report(query_id))


async def test_a_snapshot_stores_only_changed_nodes(build):
    controller, store = build(), Memory()
    saver = SnapshotSaver(controller.recovery, store)
    await use(controller, "1", "a")
    await use(controller, "2", "b")
    await saver.save()
    await use(controller, "3", "b")
    await saver.save()
    assert store.changes == [{key("a"), key("b")}, {key("b")}]


async def test_a_snapshot_stores_all_changes_after_the_store_failed(build):
    controller, store = build(), Memory()
    saver = SnapshotSaver(controller.recovery, store)
    await use(controller, "1", "a")
    await saver.save()
    store.away = True
    await use(controller, "2", "b")
    await saver.save()
    store.away = False
    await saver.save()
    assert store.changes[-1] == {key("a"), key("b")}


async def test_restored_host_pages_keep_their_uses(build):
    first, store = build(host=100), Memory()
    await use(first, "1", "a")
    await kept_of(first, store)
    second = build(host=100)
    second.recovery.recall(store.kept)
    pages = Pages(tuple(range(TOKENS)), 7)
    second.recovery.restore([ResidencyReport(Tier.HOST, (HeldNode("tenant", ("a",), TOKENS, pages),))])
    (node,) = (await second.tree(1, 1000)).namespaces["tenant"]
    assert (node.frequency, node.places) == (1, ("host",))


async def test_no_snapshot_is_taken_for_a_store_that_keeps_nothing(build, monkeypatch):
    controller = build()
    monkeypatch.setattr(controller.recovery, "snapshot", None)
    await SnapshotSaver(controller.recovery, NoStore()).save()
