"""Tiers: the time to first token with a prompt's KV in each tier, against plain vLLM and its own prefix cache.

Two engines with the same flags and memory, one plain and one with the connector, run in turn. Each round has new
documents, so neither finds the other's KV. ``floor`` is the same question behind an equally long prefix in vLLM's own
prefix cache. The prefix fills whole blocks, because vLLM caches no partial ones: otherwise the floor would have to
compute a rest of the prefix, and be easy to reach.

Limits: one request at a time, without a scheduler.
"""

import tempfile
from pathlib import Path
from statistics import median

import msgspec

from examine.measuring import Progress
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import KvPath
from examine.measuring.statistics import percentile
from examine.measuring.tier_rounds import DISK_COLD, caching_round, copy_rate, plain_round, read_rate, round_segments
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.tiers import Tier
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.measuring.file_cache import evict_from_file_cache

BELOW = (Tier.HOST, Tier.DISK)
CASES = ("plain", "floor", "miss", "gpu", "host", "disk", DISK_COLD)


class TiersResult(msgspec.Struct, frozen=True):
    """Medians over rounds: ``ttft_ms`` by case; a ratio is the median of the rounds' ratios.

    ``disk`` reads files that the operating system still has in memory, ``disk cold`` reads them from the disk itself;
    it is None on file systems that keep all files in memory.
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
    disk_cold_over_floor: float | None
    miss_over_plain: float
    host_bytes_per_s: float
    memory_copy_bytes_per_s: float
    host_share_of_copy: float
    disk_bytes_per_s: float
    disk_cold_bytes_per_s: float | None
    file_read_bytes_per_s: float
    disk_share_of_read: float


class TiersBenchmark:
    """Measures ``documents`` documents of ``document_tokens`` tokens behind a system prompt, in ``rounds`` rounds."""

    def __init__(self, engines: ComparedEngines, documents: int, document_tokens: int, rounds: int) -> None:
        self._engines = engines
        self._documents = documents
        self._document_tokens = document_tokens
        self._rounds = rounds

    async def run(self, progress: Progress) -> TiersResult:
        """Measure. ``progress`` is called with (step, done, total). Raises what the engines raise."""
        ttft: dict[str, list[float]] = {case: [] for case in CASES}
        rates: dict[str, list[float]] = {kind: [] for kind in ("host", "copy", "disk", DISK_COLD, "read")}
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as name:
            folder = Path(name)
            async with self._engines.plain() as plain, self._engines.caching(folder / "kv") as caching:
                memory = (await caching.info()).kv
                if memory is None:
                    raise InternalError("the engine keeps no KV, so there is nothing to measure")
                for number in range(-1, self._rounds):
                    progress("measuring", number + 1, self._rounds + 1)
                    segments = round_segments(number, self._documents, self._document_tokens, memory.page_tokens)
                    path = KvPath(segments, memory.paging)
                    size = path.page_count * memory.page_bytes
                    took = await self._round(plain, caching, path, number, folder / "kv")
                    copies = copy_rate(size), read_rate(folder / "read", size)
                    if number < 0:
                        # The first round warms up both sides.
                        continue
                    for case, came in took.items():
                        ttft[case].append(came.ttft_ms)
                    rates["host"].append(size / took["host"].prefill.kv_load_ms * 1000)
                    rates["disk"].append(size / took["disk"].prefill.kv_load_ms * 1000)
                    if DISK_COLD in took:
                        rates[DISK_COLD].append(size / took[DISK_COLD].prefill.kv_load_ms * 1000)
                    rates["copy"].append(copies[0])
                    rates["read"].append(copies[1])
                progress("measuring", self._rounds + 1, self._rounds + 1)
        cold = len(ttft[DISK_COLD]) == self._rounds
        if not cold:
            del ttft[DISK_COLD]
        return TiersResult(
            rounds=self._rounds,
            prefix_tokens=path.tokens,
            prefix_bytes=size,
            ttft_ms={case: median(times) for case, times in ttft.items()},
            ttft_p90_ms={case: percentile(times, 90) for case, times in ttft.items()},
            gpu_over_floor=_ratio(ttft["gpu"], ttft["floor"]),
            host_over_floor=_ratio(ttft["host"], ttft["floor"]),
            disk_over_floor=_ratio(ttft["disk"], ttft["floor"]),
            disk_cold_over_floor=_ratio(ttft[DISK_COLD], ttft["floor"]) if cold else None,
            miss_over_plain=_ratio(ttft["miss"], ttft["plain"]),
            host_bytes_per_s=median(rates["host"]),
            memory_copy_bytes_per_s=median(rates["copy"]),
            host_share_of_copy=_ratio(rates["host"], rates["copy"]),
            disk_bytes_per_s=median(rates["disk"]),
            disk_cold_bytes_per_s=median(rates[DISK_COLD]) if cold else None,
            file_read_bytes_per_s=median(rates["read"]),
            disk_share_of_read=_ratio(rates["disk"], rates["read"]),
        )

    async def _round(
        self, plain: VllmEngine, caching: VllmEngine, path: KvPath, number: int, disk: Path
    ) -> dict[str, Generation]:
        def cool() -> bool:
            return evict_from_file_cache(disk)

        if number % 2:
            return await plain_round(plain, path) | await caching_round(caching, path, BELOW, cool)
        return await caching_round(caching, path, BELOW, cool) | await plain_round(plain, path)


def _ratio(measured: list[float], baseline: list[float]) -> float:
    return median(ours / theirs for ours, theirs in zip(measured, baseline, strict=True))
