"""Loads from an object store run beside those from this machine, and do not hold them up."""

import threading

import pytest

pytest.importorskip("vllm")

from page_target import MemoryBlocks
from s3_server import failing, hanging
from tier_contract import PAGE_BYTES, PAGE_TOKENS, content_of, hand_out, make_node, write
from tiers_under_test import open_objects

from generator.connector.blocks.staged_pages import HostStagedPages
from generator.connector.step_jobs import BlockCopy, DonorPages, Load, Piece
from generator.connector.worker.background_loads import BackgroundLoads
from generator.connector.worker.open_tiers import _disk_rate, open_tiers
from generator.settings import KvSettings, ObjectStoreSettings
from generator.tiers.base import NullTier
from generator.tiers.disk import DiskTier
from generator.tiers.object_store import ObjectStoreTier
from protocol.kv import LostCopy, Paging
from protocol.plans import Donor, PlannedNode
from protocol.tiers import Tier

NODE = make_node(0)
PATIENCE_S = 20


class EngineBlocks(MemoryBlocks):
    """Plain memory with the further methods that loads use of an engine's blocks."""

    paging = Paging(PAGE_TOKENS)
    page_bytes = PAGE_BYTES

    def __init__(self, count: int) -> None:
        super().__init__(count, (PAGE_BYTES,))
        self.copied: list[BlockCopy] = []

    def copy(self, copies) -> None:
        self.copied += copies

    def stage(self, count: int):
        return HostStagedPages(lambda: MemoryBlocks(count, (PAGE_BYTES,))._slabs[0], lambda _block, _page: None)

    def fence(self):
        return lambda: None

    def enter_thread(self) -> None:
        """Do nothing."""

    finish = enter_thread


class Worker:
    """Loads over plain blocks. ``load`` waits for the end of one."""

    def __init__(self, tiers, blocks: int = 64) -> None:
        self.blocks = EngineBlocks(blocks)
        self.ended: dict[str, threading.Event] = {}
        self.results = {}
        self.staged = {}
        self.loads = BackgroundLoads(self.blocks, tiers, 2, self._end, self._stage)

    def start(self, load: Load) -> None:
        self.ended[load.request_id] = threading.Event()
        self.loads.start(load)

    def load(self, load: Load):
        self.start(load)
        assert self.ended[load.request_id].wait(PATIENCE_S), "the load has not ended"
        return self.results[load.request_id]

    def _end(self, load, result, failed) -> None:
        self.results[load.request_id] = (result, set(failed))
        self.ended[load.request_id].set()

    def _stage(self, request_id, rows) -> None:
        self.staged.setdefault(request_id, {}).update(rows)


@pytest.fixture
def store(s3):
    return open_objects(s3.open(s3.new_bucket()))


@pytest.fixture
def worker(arena, store):
    worker = Worker({Tier.HOST: arena, Tier.DISK: store})
    yield worker
    worker.loads.close()


def stored(node, blocks) -> Piece:
    return Piece(PlannedNode(node.key, 1, Tier.DISK, None), 0, tuple(blocks))


def test_one_load_reads_host_memory_and_the_store_and_copies(worker, arena, store):
    nodes = [make_node(number) for number in range(4)]
    write(arena, nodes[0])
    for node in nodes[1:]:
        write(store, node)
    pieces = [Piece(PlannedNode(nodes[0].key, 1, Tier.HOST, None, hand_out(nodes[0])), 0, (0, 1, 2))]
    pieces += [stored(node, range(3 * number, 3 * number + 3)) for number, node in enumerate(nodes[1:], start=1)]
    donor = DonorPages(Donor(nodes[1].key, Tier.DISK, 20), ("tenant", "doc1"), 20, 60)
    result, failed = worker.load(Load("request", tuple(pieces), (BlockCopy(0, 20),), (donor,)))
    assert (result.lost, result.unread, result.failed, failed) == ((), (), False, set())
    for number, node in enumerate(nodes):
        for index in range(3):
            assert (worker.blocks.page(3 * number + index) == content_of(node)[index]).all()
    assert worker.blocks.copied == [BlockCopy(0, 20)]
    rows = worker.staged["request"][donor.start]
    assert (rows.staged.pages[rows.numbers].numpy() == content_of(nodes[1])).all()


def test_a_load_from_the_store_alone_ends_once(worker, store):
    write(store, NODE)
    result, failed = worker.load(Load("request", (stored(NODE, (7, 8, 9)),)))
    assert (result.failed, failed) == (False, set())
    assert (worker.blocks.page(9) == content_of(NODE)[2]).all()


def test_a_load_without_anything_ends(worker):
    result, _ = worker.load(Load("request", ()))
    assert not result.failed


def test_a_silent_store_does_not_hold_up_host_memory(worker, arena, store, s3):
    write(arena, make_node(1))
    write(store, NODE)
    release = threading.Event()
    with s3.answering(hanging(release)):
        # More of them than there are threads for host memory.
        for number in range(4):
            worker.start(Load(f"slow-{number}", (stored(NODE, (0, 1, 2)),)))
        here = Piece(PlannedNode(make_node(1).key, 1, Tier.HOST, None, hand_out(make_node(1))), 0, (3, 4, 5))
        result, _ = worker.load(Load("fast", (here,)))
        assert not result.failed
        assert not any(worker.ended[f"slow-{number}"].is_set() for number in range(4))
        release.set()
        for number in range(4):
            assert worker.ended[f"slow-{number}"].wait(PATIENCE_S)
    assert (worker.blocks.page(5) == content_of(make_node(1))[2]).all()


def test_a_store_that_fails_costs_the_request_its_blocks_alone(worker, arena, store, s3):
    write(arena, make_node(1))
    write(store, NODE)
    here = Piece(PlannedNode(make_node(1).key, 1, Tier.HOST, None, hand_out(make_node(1))), 0, (3, 4, 5))
    with s3.answering(failing("500 Internal Server Error")):
        result, failed = worker.load(Load("request", (here, stored(NODE, (0, 1, 2)))))
    assert result.failed
    assert failed == {0, 1, 2}
    assert (result.lost, result.unread) == ((), (LostCopy(NODE.key, Tier.DISK),))
    assert store.has(NODE.key, None)


def test_a_large_node_is_read_by_several_threads(worker, store, s3):
    large = make_node(3, 0, 16 * 3600)
    write(store, large)
    big = Worker({Tier.DISK: store}, 3600)
    meeting = threading.Barrier(2)

    def meet(environ, start_response):
        """Neither of two threads is served its pages before the other one asks for its own."""
        if not environ.get("HTTP_RANGE", "").startswith("bytes=0-"):
            meeting.wait(PATIENCE_S)

    with s3.answering(meet):
        result, failed = big.load(Load("request", (stored(large, range(3600)),)))
    big.loads.close()
    assert (result.failed, failed) == (False, set())
    assert all((big.blocks.page(index) == page).all() for index, page in enumerate(content_of(large)))


def test_a_configured_store_is_opened_in_the_place_of_the_folder(tmp_path):
    store = ObjectStoreSettings(url=f"file://{tmp_path}/objects")
    settings = KvSettings(host_gib=0, disk_dir=tmp_path / "kv", object_store=store, disk_gib=0.001)
    disk = open_tiers(settings.places(), "weights", EngineBlocks(2))[Tier.DISK]
    assert isinstance(disk, ObjectStoreTier)
    write(disk, NODE)
    assert list((tmp_path / "objects").rglob(f"{NODE.key}.safetensors"))
    assert not (tmp_path / "kv").exists()
    no_store = settings.model_copy(update={"object_store": None})
    assert isinstance(open_tiers(no_store.places(), "weights", EngineBlocks(2))[Tier.DISK], DiskTier)
    no_room = settings.model_copy(update={"disk_gib": 0.0})
    assert isinstance(open_tiers(no_room.places(), "weights", EngineBlocks(2))[Tier.DISK], NullTier)


def test_the_rate_of_a_store_is_measured_and_no_probe_is_left(store, s3):
    assert _disk_rate(store, EngineBlocks(9), 8) > 0
    assert store.nodes() == []
    with s3.answering(failing("403 Forbidden", methods="PUT POST DELETE")):
        assert _disk_rate(store, EngineBlocks(9), 8) is None


def test_the_rate_of_a_store_that_is_not_there_is_not_measured(store, s3):
    with s3.answering(failing("500 Internal Server Error")):
        assert _disk_rate(store, EngineBlocks(9), 8) is None
