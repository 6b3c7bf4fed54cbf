"""Opens a worker's tiers as configured, and measures how fast they load."""

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import numpy as np
import structlog
from blake3 import blake3

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.settings import KvPlaces
from generator.tiers.arena import HostArena
from generator.tiers.base import KvTier, NullTier, StoredNode, TierError, TierUnavailable
from generator.tiers.disk import DiskTier
from generator.tiers.disk_folder import boot_id
from generator.tiers.object_requests import open_store
from generator.tiers.object_store import ObjectStoreTier
from protocol.kv import KvMemory, KvNode, Paging
from protocol.tiers import Tier

log = structlog.get_logger(__name__)

_PROBE_BYTES = 32 << 20
_PROBE_PATH = ("probe",)
# The most that a file on disk takes besides its pages.
_FILE_BYTES = 16 << 10


def open_tiers(places: KvPlaces, fingerprint: str, blocks: PagedBlocks) -> dict[Tier, KvTier]:
    """The tiers below the GPU of a worker with these blocks. Raises ConfigError if one cannot be opened."""
    paging, page_bytes = blocks.paging, blocks.page_bytes
    host_pages = places.host_bytes // page_bytes
    host: KvTier = NullTier(Tier.HOST)
    if host_pages:
        host = HostArena(places.host_file, fingerprint, paging, page_bytes, host_pages, blocks.pin)
    return {Tier.HOST: host, Tier.DISK: _open_disk(places, fingerprint, paging, page_bytes)}


def _open_disk(places: KvPlaces, fingerprint: str, paging: Paging, page_bytes: int) -> KvTier:
    if places.disk_bytes < page_bytes:
        return NullTier(Tier.DISK)
    if places.object_store is not None:
        store = open_store(places.object_store)
        tier = ObjectStoreTier(store, fingerprint, paging, page_bytes, places.disk_bytes)
        if tier.identity:
            return tier
        # Nobody would know that it is the store of others, and they would lose what is in it.
        log.warning("the object store is not used until the next start", store=places.object_store.url)
        return NullTier(Tier.DISK)
    if places.disk_dir is not None:
        return DiskTier(places.disk_dir, fingerprint, paging, page_bytes, places.disk_bytes, places.file_cache)
    return NullTier(Tier.DISK)


def measure_memory(
    places: KvPlaces,
    fingerprint: str,
    blocks: PagedBlocks,
    attention: str,
    gpu_pages: int,
    num_blocks: int,
    tiers: dict[Tier, KvTier],
) -> KvMemory:
    """A worker's memory for KV. The rates are measured now, so no request may use the blocks meanwhile.

    ``attention`` names the attention backend, which lays out the blocks.
    """
    size = blocks.page_bytes
    host = places.host_bytes // size
    has_disk = places.disk_dir is not None or places.object_store is not None
    disk = places.disk_bytes // (size + _FILE_BYTES) if has_disk else 0
    count = max(1, min(_PROBE_BYTES // size, num_blocks - 1))
    # The engine may still be filling its blocks with zeros.
    blocks.fence()()
    disk_rate = _disk_rate(tiers[Tier.DISK], blocks, count)
    # After the disk's probe, because this one overwrites the probe's bytes in the blocks with zeros.
    host_rate = _host_rate(blocks, count)
    return KvMemory(
        fingerprint=fingerprint,
        boot=uuid4().hex,
        page_tokens=blocks.paging.page_tokens,
        page_bytes=size,
        gpu_pages=gpu_pages,
        host_pages=host,
        disk_pages=disk,
        host_bytes_per_s=host_rate,
        disk_bytes_per_s=disk_rate or host_rate,
        device=blocks.device_name,
        shared=_shared_tiers(places),
        disk=tiers[Tier.DISK].identity,
        layout=f"{attention} {blocks.shapes}",
        groups=blocks.paging.groups,
    )


def _shared_tiers(places: KvPlaces) -> str:
    """A digest that is equal for instances which open the same files on the same machine.

    A file system mounted by several machines counts as a different one on each.
    """
    opened = [path.stat() for path in (places.host_file, places.disk_dir) if path is not None and path.exists()]
    files = "/".join([boot_id(), *(f"{file.st_dev}:{file.st_ino}" for file in opened)])
    return blake3(files.encode()).hexdigest(8)


def _host_rate(blocks: PagedBlocks, count: int) -> float:
    """Bytes a second from memory like the arena's into the engine's blocks."""
    # Not np.zeros, whose memory would all be the kernel's one page of zeros.
    pages = np.full((count, blocks.page_bytes), 0, np.uint8)
    unpin = blocks.pin(pages)

    def load() -> None:
        blocks.write(pages, range(count), range(1, count + 1))
        blocks.finish()

    try:
        # The first load pays for touching memory.
        load()
        return pages.nbytes / _time_s(load)
    finally:
        unpin()


def _disk_rate(disk: KvTier, blocks: PagedBlocks, count: int) -> float | None:
    """Bytes a second from a file just written, or else from the largest one there. None if there is neither."""
    for stored in _held(disk):
        if _is_probe(stored.node):
            # Its process was killed. The controller would not find the file under the path that it names.
            disk.drop(stored.node.key, None)
    tokens = max(1, count // len(blocks.paging.groups)) * blocks.paging.page_tokens
    probe = KvNode(f"probe-{uuid4().hex}", "", _PROBE_PATH, 0, tokens)
    rate, problem = None, "another instance has deleted the probe"
    try:
        _write(disk, probe, blocks.paging.page_count(0, tokens))
        rate = _load_rate(disk, probe, blocks, count)
    except TierError as error:
        problem = str(error)
    if rate is None:
        # A full disk has no room for a probe, but has files to read.
        held = max((stored.node for stored in _held(disk)), key=lambda node: node.tokens, default=None)
        rate = _load_rate(disk, held, blocks, count) if held is not None else None
    if rate is None:
        log.warning("disk_not_measured", error=problem)
    return rate


def _held(disk: KvTier) -> list[StoredNode]:
    """What the tier lists; nothing if it does not answer."""
    with suppress(TierUnavailable):
        return disk.nodes()
    return []


def _is_probe(node: KvNode) -> bool:
    return node.path == _PROBE_PATH and not node.namespace


def _write(disk: KvTier, node: KvNode, count: int) -> None:
    with disk.writing(node, None) as writer:
        for index in range(count):
            writer.page(index)[:] = index % 251


def _load_rate(disk: KvTier, node: KvNode, blocks: PagedBlocks, most_pages: int) -> float | None:
    """Bytes a second from a file that is not in the file cache. None if it cannot be read.

    A file may lie on the disk for long before it is used again, so the operating system need not have it in memory.

    Loads at most ``most_pages`` pages, into the blocks after the first.
    """
    count = min(most_pages, blocks.paging.page_count(node.prefix_tokens, node.tokens))
    try:
        with disk.reading(node.key, None) as reader:

            def load() -> None:
                reader.load(0, range(1, count + 1), blocks)
                blocks.finish()

            # The first load pays for touching memory.
            load()
            reader.uncache()
            return count * blocks.page_bytes / _time_s(load)
    except TierError:
        return None
    finally:
        if _is_probe(node):
            disk.drop(node.key, None)


def _time_s(load: Callable[[], None]) -> float:
    """Seconds that a load takes."""
    began = time.perf_counter()
    load()
    return time.perf_counter() - began
