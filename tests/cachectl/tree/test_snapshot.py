"""What a controller knows of a former one: uses, pins and deletions, and the directory of who holds what."""

import pytest
from controller_under_test import TOKENS, Clock, ask, checked_controllers, key, report

from cachectl.runtime.snapshot_saver import SnapshotSaver
from cachectl.tree.snapshot import NoStore, Snapshot
from protocol.cache import CachePath, DocumentDeletion
from protocol.kv import HeldNode, Pages, ResidencyReport
from protocol.tiers import Tier


class Memory:
    """A store in memory, which may be away."""

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
    await SnapshotSaver(controller.recovery, store, 1.0).save()


async def test_uses_pins_and_places_outlive_the_controller(build):
    first, store = build(disk=100, swap="write_through"), Memory()
    first.recovery.shared = "rack"
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
    # The last request of the former one is one ago to nobody: it is the newest there is.
    assert [nodes[name].requests_ago for name in "abc"] == [5, 3, 0]


async def test_what_the_tiers_no_longer_have_is_forgotten(build):
    first, store = build(disk=100), Memory()
    await use(first, "1", "a")
    await first.pin(CachePath("tenant", ("a",)))
    await kept_of(first, store)
    second = build(disk=100)
    second.recovery.recall(store.kept)
    second.recovery.restore([])
    assert (await second.tree(1, 1000)).nodes == 0
    keeper = SnapshotSaver(second.recovery, store, 1.0)
    await keeper.save()
    assert store.kept.nodes == {}


async def test_a_query_that_found_a_document_before_its_deletion_leaves_nothing_after_a_restart(build, clock):
    first, store = build(), Memory()
    clock.now = 10.0
    await first.delete_document(DocumentDeletion(("a",), "tenant"))
    await kept_of(first, store)
    second = build()
    second.recovery.recall(store.kept)
    assert (await second.admit(ask("late", "a", searched_at=9.0))).unshared
    assert not (await second.admit(ask("anew", "a", searched_at=11.0))).unshared
    for query_id in ("late", "anew"):
        await second.complete(report(query_id))


async def test_only_what_has_changed_is_kept_anew(build):
    controller, store = build(), Memory()
    keeper = SnapshotSaver(controller.recovery, store, 1.0)
    await use(controller, "1", "a")
    await use(controller, "2", "b")
    await keeper.save()
    await use(controller, "3", "b")
    await keeper.save()
    assert store.changes == [{key("a"), key("b")}, {key("b")}]


async def test_all_is_kept_anew_after_the_store_was_away(build):
    controller, store = build(), Memory()
    keeper = SnapshotSaver(controller.recovery, store, 1.0)
    await use(controller, "1", "a")
    await keeper.save()
    store.away = True
    await use(controller, "2", "b")
    await keeper.save()
    store.away = False
    await keeper.save()
    assert store.changes[-1] == {key("a"), key("b")}


async def test_pages_of_host_memory_are_found_with_their_uses(build):
    first, store = build(host=100), Memory()
    await use(first, "1", "a")
    await kept_of(first, store)
    second = build(host=100)
    second.recovery.recall(store.kept)
    pages = Pages(tuple(range(TOKENS)), 7)
    second.recovery.restore([ResidencyReport(Tier.HOST, (HeldNode("tenant", ("a",), TOKENS, pages),))])
    (node,) = (await second.tree(1, 1000)).namespaces["tenant"]
    assert (node.frequency, node.places) == (1, ("host",))


async def test_for_a_store_that_keeps_nothing_nothing_is_recollected(build, monkeypatch):
    controller = build()
    monkeypatch.setattr(controller.recovery, "snapshot", None)
    await SnapshotSaver(controller.recovery, NoStore(), 1.0).save()
