"""What an instance keeps KV in: its tiers, opened as configured, and how fast they are."""

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import structlog
from blake3 import blake3

from generator.connector.blocks import PagedBlocks
from generator.settings import KvSettings
from generator.tiers.arena import HostArena
from generator.tiers.base import KvTier, TierError
from generator.tiers.disk import DiskTier
from generator.tiers.null import NullTier
from protocol.kv import KvMemory, KvNode, pages_spanned
from protocol.tiers import Tier

log = structlog.get_logger(__name__)

_PROBE_BYTES = 32 << 20
# What a file on disk takes besides its pages, at most.
_FILE_BYTES = 16 << 10


def open_tiers(settings: KvSettings, fingerprint: str, page_tokens: int, page_bytes: int) -> dict[Tier, KvTier]:
    """The tiers below the GPU. Raises ConfigError where one of them cannot be had as configured."""
    host_pages = pages_of(settings.host_gib, page_bytes)
    host: KvTier = NullTier(Tier.HOST)
    if host_pages:
        host = HostArena(settings.host_file, fingerprint, page_tokens, page_bytes, host_pages)
    disk: KvTier = NullTier(Tier.DISK)
    if pages_of(settings.disk_gib, page_bytes) and settings.disk_dir is not None:
        disk = DiskTier(settings.disk_dir, fingerprint, page_tokens, page_bytes, int(settings.disk_gib * (1 << 30)))
    return {Tier.HOST: host, Tier.DISK: disk}


def describe(
    settings: KvSettings, fingerprint: str, blocks: PagedBlocks, num_blocks: int, tiers: dict[Tier, KvTier]
) -> KvMemory:
    """An instance's memory for KV, with its rates as measured now."""
    size = blocks.page_bytes
    host = pages_of(settings.host_gib, size)
    disk = pages_of(settings.disk_gib, size + _FILE_BYTES) if settings.disk_dir is not None else 0
    count = max(1, min(_PROBE_BYTES // size, num_blocks - 1))
    disk_rate = _disk_rate(tiers[Tier.DISK], blocks, count)
    # Behind the disk's probe, whose bytes lie in the blocks: this one leaves zeros there.
    host_rate = _host_rate(blocks, count)
    return KvMemory(
        fingerprint=fingerprint,
        boot=uuid4().hex,
        page_tokens=blocks.page_tokens,
        page_bytes=size,
        gpu_pages=int(num_blocks * settings.gpu_share),
        host_pages=host,
        disk_pages=disk,
        host_bytes_per_s=host_rate,
        disk_bytes_per_s=disk_rate or host_rate,
        device=blocks.device_name,
        shared=_shared_tiers(settings),
    )


def _shared_tiers(settings: KvSettings) -> str:
    """Names the memory and the disk below the GPU: who opens the same files of the same machine says the same.

    A file system that several machines have mounted counts as one of each.
    """
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    opened = [path.stat() for path in (settings.host_file, settings.disk_dir) if path is not None and path.exists()]
    return blake3("/".join([machine, *(f"{file.st_dev}:{file.st_ino}" for file in opened)]).encode()).hexdigest(16)


def pages_of(gib: float, page_bytes: int) -> int:
    """How many whole pages fit."""
    return int(gib * (1 << 30)) // page_bytes


def _host_rate(blocks: PagedBlocks, count: int) -> float:
    """Bytes a second from host memory into the engine's blocks, nobody using them yet."""
    # Not np.zeros: all its pages would be the same page of zeros.
    pages = np.full((count, blocks.page_bytes), 0, np.uint8)

    def load() -> None:
        blocks.write(pages, range(count), range(1, count + 1))
        blocks.finish()

    return pages.nbytes / _second_time_s(load)


def _disk_rate(disk: KvTier, blocks: PagedBlocks, count: int) -> float | None:
    """Bytes a second from a file that was just written, or the largest that is there; None where there is neither."""
    probe = KvNode(f"probe-{uuid4().hex}", "", ("probe",), 0, count * blocks.page_tokens)
    try:
        _write(disk, probe, count)
        rate = _load_rate(disk, probe, blocks, count)
    except TierError as error:
        # A disk that is full, as it is sooner or later, has something to read and no room for a probe.
        held = max((stored.node for stored in disk.nodes()), key=lambda node: node.tokens, default=None)
        rate = _load_rate(disk, held, blocks, count) if held is not None else None
        if rate is None:
            log.warning("disk_not_measured", error=str(error))
    finally:
        disk.drop(probe.key, None)
    return rate


def _write(disk: KvTier, node: KvNode, count: int) -> None:
    with disk.writing(node, None) as writer:
        for index in range(count):
            writer.page(index)[:] = index % 251


def _load_rate(disk: KvTier, node: KvNode, blocks: PagedBlocks, most_pages: int) -> float | None:
    """Bytes a second from a file in the file cache, as what was asked for lately is; None where it cannot be read.

    At most ``most_pages`` of it are loaded, into the blocks behind the first.
    """
    count = min(most_pages, len(pages_spanned(node.prefix_tokens, node.tokens, blocks.page_tokens)))

    def load() -> None:
        with disk.reading(node.key, None) as reader:
            reader.load(0, range(1, count + 1), blocks)
        blocks.finish()

    try:
        return count * blocks.page_bytes / _second_time_s(load)
    except TierError:
        return None


def _second_time_s(load: Callable[[], None]) -> float:
    """Seconds of a load done before: what a first touch of memory, or a first read of a file, takes is not counted."""
    load()
    began = time.perf_counter()
    load()
    return time.perf_counter() - began
