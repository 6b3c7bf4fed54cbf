"""Tiers: the time to first token with a prompt's KV in each tier, against plain vLLM and its own prefix cache.

Two engines with the same flags and memory, one plain and one with the connector, run in turn. Each round has new
documents, so neither finds the other's KV. ``floor`` is the same question behind an equally long prefix in vLLM's own
prefix cache. The prefix fills whole blocks, because vLLM caches no partial ones: otherwise the floor would have to
compute a rest of the prefix, and be easy to reach.

Limits: one request at a time, without a scheduler.
"""

import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import uuid4

import msgspec
import numpy as np

from benchmarks.measuring.engines import EngineMaker, Generation, generate
from benchmarks.measuring.kv_paths import KvPath, random_segment
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.statistics import percentile
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.kv import Orders
from protocol.plans import PrefillPlan
from protocol.prompts import SegmentKind
from protocol.tiers import Tier

SYSTEM_TOKENS = 32
SHORT_SAMPLES = 3
"""How often the fastest cases run in each round: a stray millisecond is 2 % of them."""
CASES = ("plain", "floor", "miss", "gpu", "host", "disk")


class TiersResult(msgspec.Struct, frozen=True):
    """Medians over rounds: ``ttft_ms`` by case; a ratio is the median of the rounds' ratios.

    ``floor`` and ``gpu`` run several times per round; their median is the round's value. Bandwidths are bytes per
    second of loads, which use all their threads. A plain memory copy and a plain file read of as many bytes, with one
    thread each, stand beside them.
    """

    rounds: int
    prefix_tokens: int
    prefix_bytes: int
    ttft_ms: dict[str, float]
    ttft_p90_ms: dict[str, float]
    gpu_over_floor: float
    host_over_floor: float
    disk_over_floor: float
    miss_over_plain: float
    host_bytes_per_s: float
    memory_copy_bytes_per_s: float
    host_share_of_copy: float
    disk_bytes_per_s: float
    file_read_bytes_per_s: float
    disk_share_of_read: float


class TiersBenchmark:
    """Measures ``documents`` documents of ``document_tokens`` tokens behind a system prompt, in ``rounds`` rounds."""

    def __init__(self, engines: EngineMaker, documents: int, document_tokens: int, rounds: int) -> None:
        self._engines = engines
        self._documents = documents
        self._document_tokens = document_tokens
        self._rounds = rounds

    async def run(self, progress: Progress) -> TiersResult:
        """Measure. ``progress`` is called with (step, done, total). Raises what the engines raise."""
        ttft: dict[str, list[float]] = {case: [] for case in CASES}
        rates: dict[str, list[float]] = {kind: [] for kind in ("host", "copy", "disk", "read")}
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as name:
            folder = Path(name)
            async with self._engines.plain() as plain, self._engines.caching(folder / "kv") as caching:
                memory = (await caching.info()).kv
                if memory is None:
                    raise InternalError("the engine keeps no KV, so there is nothing to measure")
                for number in range(-1, self._rounds):
                    progress("measuring", number + 1, self._rounds + 1)
                    path = self._path(number, memory.page_tokens)
                    size = path.page_count * memory.page_bytes
                    took = await self._round(plain, caching, path, number)
                    copies = _copy_rate(size), _read_rate(folder / "read", size)
                    if number < 0:
                        # The first round warms up both sides.
                        continue
                    for case, came in took.items():
                        ttft[case].append(came.ttft_ms)
                    rates["host"].append(size / took["host"].prefill.kv_load_ms * 1000)
                    rates["disk"].append(size / took["disk"].prefill.kv_load_ms * 1000)
                    rates["copy"].append(copies[0])
                    rates["read"].append(copies[1])
                progress("measuring", self._rounds + 1, self._rounds + 1)
        return TiersResult(
            rounds=self._rounds,
            prefix_tokens=path.tokens,
            prefix_bytes=size,
            ttft_ms={case: median(times) for case, times in ttft.items()},
            ttft_p90_ms={case: percentile(times, 90) for case, times in ttft.items()},
            gpu_over_floor=_ratio(ttft["gpu"], ttft["floor"]),
            host_over_floor=_ratio(ttft["host"], ttft["floor"]),
            disk_over_floor=_ratio(ttft["disk"], ttft["floor"]),
            miss_over_plain=_ratio(ttft["miss"], ttft["plain"]),
            host_bytes_per_s=median(rates["host"]),
            memory_copy_bytes_per_s=median(rates["copy"]),
            host_share_of_copy=_ratio(rates["host"], rates["copy"]),
            disk_bytes_per_s=median(rates["disk"]),
            file_read_bytes_per_s=median(rates["read"]),
            disk_share_of_read=_ratio(rates["disk"], rates["read"]),
        )

    def _path(self, number: int, page_tokens: int) -> KvPath:
        least = SYSTEM_TOKENS + self._documents * self._document_tokens
        system_tokens = SYSTEM_TOKENS + -least % page_tokens
        system = random_segment(f"system {number}", system_tokens, SegmentKind.SYSTEM)
        documents = [
            random_segment(f"document {number} {rank}", self._document_tokens) for rank in range(self._documents)
        ]
        return KvPath((system, *documents), page_tokens)

    async def _round(self, plain: VllmEngine, caching: VllmEngine, path: KvPath, number: int) -> dict[str, Generation]:
        took: dict[str, Generation] = {}

        async def on_plain() -> None:
            took["plain"] = await generate(plain, _new(path, "first", None, None), 1)
            took["floor"] = await _median_of(plain, path, None)

        async def on_caching() -> None:
            write = path.moves(Tier.GPU, Tier.HOST, evict=False)
            took["miss"] = await _saving(caching, path)
            took["gpu"] = await _median_of(caching, path, Tier.GPU)
            await _carried_out(caching, Orders(write))
            await _only_in(caching, path, Tier.HOST)
            took["host"] = await generate(caching, _new(path, "second", Tier.HOST, None), 1)
            await _carried_out(caching, Orders(path.moves(Tier.HOST, Tier.DISK)))
            await _only_in(caching, path, Tier.DISK)
            took["disk"] = await generate(caching, _new(path, "second", Tier.DISK, None), 1)
            await _carried_out(caching, Orders(path.moves(Tier.DISK, None)))
            for tier in (Tier.GPU, Tier.HOST, Tier.DISK):
                found = took[tier].prefill.loaded.get(tier, 0)
                if found != path.tokens:
                    raise InternalError(f"only {found} of {path.tokens} tokens came from {tier}")

        for side in (on_plain, on_caching) if number % 2 else (on_caching, on_plain):
            await side()
        return took


async def _median_of(engine: VllmEngine, path: KvPath, tier: Tier | None) -> Generation:
    """Return the median of several questions behind KV that stays in place."""
    came = [await generate(engine, _new(path, "second", tier, tier), 1) for _ in range(SHORT_SAMPLES)]
    return sorted(came, key=lambda generation: generation.ttft_ms)[SHORT_SAMPLES // 2]


async def _saving(engine: VllmEngine, path: KvPath) -> Generation:
    """Run a miss whose KV goes to host memory meanwhile; then bring the KV into the GPU with another question."""
    came = await generate(engine, _new(path, "first", None, Tier.HOST), 1)
    await _carried_out(engine, Orders(path.moves(Tier.HOST, None)))
    await generate(engine, _new(path, "again", None, Tier.GPU), 1)
    return came


async def _only_in(engine: VllmEngine, path: KvPath, tier: Tier) -> None:
    """Remove a path's KV from all tiers above one, and from vLLM's own prefix cache."""
    drops = path.moves(Tier.GPU, None) + (path.moves(Tier.HOST, None) if tier is Tier.DISK else ())
    forget = ((path.namespace, path.segments[0].key),)
    await _carried_out(engine, Orders(drops, forget, blocks_only=True))


async def _carried_out(engine: VllmEngine, orders: Orders) -> None:
    lost = await engine.carry_out(orders)
    if lost:
        raise InternalError(f"{len(lost)} copies could not be made, the first in {lost[0].tier}")


def _new(path: KvPath, question: str, source: Tier | None, kept: Tier | None) -> PrefillPlan:
    return path.plan(f"{question} {uuid4().hex}", source, kept)


def _ratio(measured: list[float], baseline: list[float]) -> float:
    return median(ours / theirs for ours, theirs in zip(measured, baseline, strict=True))


def _copy_rate(size: int) -> float:
    """Return bytes per second of a memory copy. Both buffers are touched before."""
    source, target = np.ones(size, np.uint8), np.full(size, 2, np.uint8)
    began = perf_counter()
    np.copyto(target, source)
    return size / (perf_counter() - began)


def _read_rate(file: Path, size: int) -> float:
    """Return bytes per second of a file read from the file cache, into memory that was touched before."""
    file.write_bytes(os.urandom(1 << 20) * (size >> 20) + bytes(size % (1 << 20)))
    target = np.ones(size, np.uint8)
    with file.open("rb", buffering=0) as opened:
        began = perf_counter()
        read = opened.readinto(target.data)
        seconds = perf_counter() - began
    return (read or 0) / seconds
