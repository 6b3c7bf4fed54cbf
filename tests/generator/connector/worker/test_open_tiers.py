"""The disk's load rate is measured whatever the disk holds."""

import pytest

pytest.importorskip("vllm")

import torch
from small_cache import small_cache
from tier_checks import used_bytes

from generator.connector.worker.open_tiers import _disk_rate, measure_memory, open_tiers
from generator.settings import KvPlaces
from generator.tiers.disk import DiskTier
from protocol.kv import KvNode, Paging

PROBE_PAGES = 8
BLOCKS = small_cache(PROBE_PAGES + 1, 32, 8, 2, torch.bfloat16)
PAGE_TOKENS, PAGE_BYTES = BLOCKS.page_tokens, BLOCKS.page_bytes


@pytest.fixture
def open_disk(tmp_path):
    opened = []

    def open_(max_bytes: int) -> DiskTier:
        opened.append(DiskTier(tmp_path, "fingerprint", Paging(PAGE_TOKENS), PAGE_BYTES, max_bytes))
        return opened[-1]

    yield open_
    for disk in opened:
        disk.close()


def write(disk: DiskTier, name: str, pages: int) -> None:
    with disk.writing(KvNode(name, "tenant", (name,), 0, pages * PAGE_TOKENS), None) as writer:
        for index in range(pages):
            writer.page(index)[:] = index


def test_an_empty_disk_is_measured_and_left_empty(open_disk):
    disk = open_disk(1 << 20)
    assert _disk_rate(disk, BLOCKS, PROBE_PAGES) > 0
    assert disk.nodes() == []
    assert used_bytes(disk) == 0


def test_a_full_disk_is_measured_by_its_largest_file(open_disk):
    disk = open_disk(50_000)
    write(disk, "aa", 2)
    write(disk, "bb", 4)
    before = disk.nodes()
    assert _disk_rate(disk, BLOCKS, PROBE_PAGES) > 0
    assert disk.nodes() == before


def test_an_empty_disk_without_room_for_a_probe_is_not_measured(open_disk):
    assert _disk_rate(open_disk(10_000), BLOCKS, PROBE_PAGES) is None


def test_a_probe_that_a_killed_process_left_is_deleted(open_disk, monkeypatch):
    disk = open_disk(1 << 20)
    write(disk, "aa", 2)
    with monkeypatch.context() as killed:
        killed.setattr("generator.connector.worker.open_tiers._load_rate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _disk_rate(disk, BLOCKS, PROBE_PAGES)
    assert len(disk.nodes()) == 2
    other = open_disk(1 << 20)
    assert _disk_rate(other, BLOCKS, PROBE_PAGES) > 0
    assert [stored.node.key for stored in other.nodes()] == ["aa"]


def test_a_probe_is_deleted_before_it_is_timed(open_disk, monkeypatch):
    disk = open_disk(1 << 20)
    monkeypatch.setattr("generator.connector.worker.open_tiers._time_s", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _disk_rate(disk, BLOCKS, PROBE_PAGES)
    assert disk.nodes() == []


def interrupted(*_) -> float:
    raise KeyboardInterrupt


def test_machines_with_one_folder_name_the_same_disk(tmp_path):
    common, named = tmp_path / "common", []
    for machine in ("one", "two"):
        places = KvPlaces(tmp_path / f"{machine}.arena", 0, common, 1 << 20)
        tiers = open_tiers(places, "fingerprint", BLOCKS)
        memory = measure_memory(places, "fingerprint", BLOCKS, "attention", PROBE_PAGES, PROBE_PAGES + 1, tiers)
        named.append(memory.disk)
        for tier in tiers.values():
            tier.close()
    assert named[0] == named[1] == (common / "disk-id").read_text().strip()
    assert named[0]


def test_a_machine_without_a_disk_names_none(tmp_path):
    places = KvPlaces(tmp_path / "arena", 0, None, 0)
    tiers = open_tiers(places, "fingerprint", BLOCKS)
    assert measure_memory(places, "fingerprint", BLOCKS, "attention", PROBE_PAGES, PROBE_PAGES + 1, tiers).disk == ""
