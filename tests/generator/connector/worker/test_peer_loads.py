"""Two workers on machines of their own: what one holds, the other one loads into its blocks."""

import time

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from reads import piece_of
from small_cache import small_cache

from generator.connector.step_jobs import Load, LoadResult, Piece, StepJobs
from generator.connector.worker.background_loads import LoadProgress
from generator.connector.worker.peering import Peering
from generator.connector.worker.worker_side import WorkerSide
from generator.peers.wire import PeerUnreachable, Reason
from generator.settings import PeerSettings
from generator.tiers.arena import HostArena
from generator.tiers.disk import DiskTier
from protocol.kv import KvMemory, KvNode, KvRead, LostCopy, Pages, Paging, PeerCopy
from protocol.tiers import Tier

BLOCKS, PAGE_TOKENS, PAGES = 20, 4, 6
PATIENCE_S = 10.0
HERE = Pages(tuple(range(PAGES)), 5)


class Machine:
    """A worker side over a small cache, with host memory and a disk of its own."""

    def __init__(self, folder, key: str = "a secret of many characters", timeout_s: float = 5.0) -> None:
        folder.mkdir()
        (folder / "key").write_text(key)
        self.blocks = small_cache(BLOCKS, PAGE_TOKENS, 8, 4, torch.bfloat16)
        size = self.blocks.page_bytes
        self.host = HostArena(folder / "host.kv", "weights", Paging(PAGE_TOKENS), size, 9)
        self.disk = DiskTier(folder / "disk", "weights", Paging(PAGE_TOKENS), size, 1 << 20)
        tiers = {Tier.HOST: self.host, Tier.DISK: self.disk}
        settings = PeerSettings(key_file=folder / "key", host="127.0.0.1", timeout_s=timeout_s)
        self.peering = Peering(settings, settings.key(), tiers, "weights", size, 0)
        memory = KvMemory("weights", "boot", PAGE_TOKENS, size, BLOCKS, 9, 9, 0.0, 1.0, "cpu")
        self.worker = WorkerSide(self.blocks, tiers, memory, peering=self.peering)
        self.worker.take_results()

    def holds(self, name: str, tier: Tier, seed: int = 0) -> np.ndarray:
        """Write a node of six pages into a tier."""
        written = np.random.default_rng(seed).integers(0, 256, (PAGES, self.blocks.page_bytes), np.uint8)
        node = KvNode(name, "tenant", (name,), 0, PAGES * PAGE_TOKENS)
        kept = self.host if tier is Tier.HOST else self.disk
        with kept.writing(node, HERE if tier is Tier.HOST else None) as writer:
            for index, page in enumerate(written):
                writer.page(index)[:] = page
        return written

    def piece(self, name: str, tier: Tier, blocks: tuple[int, ...], first: int = 0) -> Piece:
        """What another machine is to read of a node here."""
        pages = HERE if tier is Tier.HOST else None
        return piece_of(name, tier, first, blocks, pages, PeerCopy("far", self.peering.peers.addresses, tier, pages))

    def load(self, *pieces: Piece) -> LoadResult:
        """Load in the background, and wait until the load has ended."""
        self.worker.load(StepJobs(loads=[Load("request", pieces)]))
        until = time.monotonic() + PATIENCE_S
        while "request" not in self.worker.take_loaded():
            assert time.monotonic() < until, "the load has not ended"
            self.worker.pause(StepJobs(idle=True))
        results = self.worker.take_results()
        assert results is not None
        return results.loads["request"]

    def page(self, block: int) -> np.ndarray:
        page = np.empty(self.blocks.page_bytes, np.uint8)
        self.blocks.read(block, page, PAGE_TOKENS)
        return page

    def close(self) -> None:
        self.worker.close()


@pytest.fixture
def machine(tmp_path):
    machines = []

    def build(name: str, **options) -> Machine:
        machines.append(Machine(tmp_path / name, **options))
        return machines[-1]

    yield build
    for each in machines:
        each.close()


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_a_node_of_another_machine_is_loaded(machine, tier):
    near, far = machine("near"), machine("far")
    written = far.holds("aa", tier)
    result = near.load(far.piece("aa", tier, (3, 9, 4), first=2))
    assert (result.lost, result.unread, result.failed) == ((), (), False)
    for index, block in enumerate((3, 9, 4), start=2):
        assert (near.page(block) == written[index]).all()
    (read,) = result.peers
    assert (read.location, read.tokens, read.failed) == ("far", 3 * PAGE_TOKENS, False)
    assert 0 < read.seconds <= result.seconds


def test_one_load_reads_here_and_there(machine):
    near, far = machine("near"), machine("far")
    here, there = near.holds("aa", Tier.HOST, seed=1), far.holds("bb", Tier.HOST, seed=2)
    own = piece_of("aa", Tier.HOST, 0, (1, 2, 3, 4, 5, 6), HERE)
    result = near.load(own, far.piece("bb", Tier.HOST, (7, 8, 9, 10, 11, 12)))
    assert not result.failed
    for index in range(PAGES):
        assert (near.page(1 + index) == here[index]).all()
        assert (near.page(7 + index) == there[index]).all()
    assert [read.tokens for read in result.peers] == [PAGES * PAGE_TOKENS]


def test_a_copy_that_the_other_machine_does_not_have_is_lost_there(machine):
    near, far = machine("near"), machine("far")
    result = near.load(far.piece("aa", Tier.HOST, (3, 9, 4)))
    assert result.failed
    assert (result.lost, result.unread) == ((LostCopy("aa", Tier.HOST, "far"),), ())
    assert near.worker.take_failed() == {3, 9, 4}
    assert result.peers == ()


@pytest.mark.parametrize("reason", ["gone", "another key", "no address"])
def test_a_machine_that_does_not_serve_has_lost_nothing(machine, reason):
    near = machine("near")
    far = machine("far", key="another secret that is long") if reason == "another key" else machine("far")
    far.holds("aa", Tier.HOST)
    piece = far.piece("aa", Tier.HOST, (3, 9, 4))
    if reason == "gone":
        far.peering.close()
    elif reason == "no address":
        piece = piece_of("aa", Tier.HOST, 0, piece.blocks, HERE, PeerCopy("far", (), Tier.HOST, HERE))
    result = near.load(piece)
    assert result.failed
    assert (result.lost, result.unread) == ((), (LostCopy("aa", Tier.HOST, "far"),))
    assert [(read.location, read.tokens, read.failed) for read in result.peers] == [("far", 0, True)]


def test_without_a_key_nothing_is_read_elsewhere(machine, tmp_path):
    far = machine("far")
    far.holds("aa", Tier.HOST)
    assert PeerSettings(host="127.0.0.1").key() is None
    near = machine("near")
    near.worker._loads._peering = None
    result = near.load(far.piece("aa", Tier.HOST, (1, 2)))
    assert result.unread == (LostCopy("aa", Tier.HOST, "far"),)


def test_what_is_read_here_does_not_wait_for_a_silent_machine(machine):
    """A peer that says nothing costs its own load a timeout, and other loads nothing."""
    import socket

    timeout_s = 4.0
    near = machine("near", timeout_s=timeout_s)
    near.holds("aa", Tier.HOST)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        stuck = [
            piece_of("bb", Tier.HOST, 0, (block,), HERE, PeerCopy("far", (address,), Tier.HOST, HERE))
            for block in (10, 11, 12)
        ]
        began = time.monotonic()
        near.worker.load(StepJobs(loads=[Load(f"stuck {piece.blocks}", (piece,)) for piece in stuck]))
        near.load(piece_of("aa", Tier.HOST, 0, (1, 2, 3), HERE))
        assert time.monotonic() - began < timeout_s / 2
        ended: set[str] = set()
        while len(ended) < len(stuck):
            assert time.monotonic() - began < PATIENCE_S
            near.worker.pause(StepJobs(idle=True))
            ended |= near.worker.take_loaded()
        # None waited for another one's timeout.
        assert time.monotonic() - began < 1.5 * timeout_s
        results = near.worker.take_results()
        assert results is not None
        assert all(
            load.peers == (KvRead("far", 0, load.peers[0].seconds, True, Tier.HOST, address),)
            for load in results.loads.values()
        )


def test_a_peer_that_had_no_time_left_has_not_failed():
    source = piece_of("aa", Tier.HOST, 0, (1, 2), HERE, PeerCopy("far", ("127.0.0.1:1",), Tier.HOST, HERE))
    late = PeerUnreachable(Reason.TIMEOUT, "too late")
    for began, failed in ((9.0, True), (11.0, False)):
        progress = LoadProgress(1, PAGE_TOKENS, fair_until=10.0)
        progress.missed(source, late, began, (1, 2))
        result = progress.end_share()
        assert result is not None
        assert result.unread == (source.copy,)
        assert any(read.failed for read in result.peers) is failed


def test_an_error_of_the_reader_is_no_failure_of_the_peer():
    source = piece_of("aa", Tier.HOST, 0, (1, 2), HERE, PeerCopy("far", ("127.0.0.1:1",), Tier.HOST, HERE))
    progress = LoadProgress(1, PAGE_TOKENS, fair_until=10.0)
    progress.missed(source, MemoryError(), 1.0, (1, 2))
    result = progress.end_share()
    assert result is not None
    assert (result.unread, result.peers, result.failed) == ((source.copy,), (), True)
