"""Level 3: the project's own benchmarks, with random weights and random prompts."""

import random
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.measuring.engines import EngineMaker
from benchmarks.measuring.kv_paths import random_segment
from benchmarks.tiers import TiersBenchmark
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.prompts import Prompt, SegmentKind
from scripts.gpu_proof.models import make_model
from scripts.gpu_proof.process import Task
from scripts.gpu_proof.random_weights import LOAD_FORMAT

_BASELINE = "vllm-prefix"


class _Size(NamedTuple):
    """How much is measured: ``host_gib`` and ``disk_gib`` are room for KV, ``kv_tokens`` the KV cache in a replay.

    ``documents`` are drawn for prompts of two, each of ``document_tokens`` tokens.
    """

    longest: int
    host_gib: float
    disk_gib: float
    tier_tokens: int
    tier_rounds: int
    kv_tokens: int
    documents: int
    document_tokens: int
    prompts: int
    requests: int
    rates: tuple[float, ...]


_SMALL = _Size(
    longest=512,
    host_gib=0.1,
    disk_gib=0.2,
    tier_tokens=200,
    tier_rounds=1,
    kv_tokens=1024,
    documents=8,
    document_tokens=100,
    prompts=32,
    requests=4,
    rates=(10.0,),
)
_LARGE = _Size(
    longest=4096,
    host_gib=14.0,
    disk_gib=14.0,
    tier_tokens=1000,
    tier_rounds=5,
    kv_tokens=23_296,
    documents=40,
    document_tokens=1000,
    prompts=48,
    requests=12,
    rates=(),
)


class BenchmarkChecks:
    """Benchmarks as checks. On a GPU, their figures must be those of a cache that pays."""

    def __init__(self, task: Task) -> None:
        given = task.group.settings
        self._small: bool = given["small"]
        self._size = _SMALL if self._small else _LARGE
        self._profiles = task.scratch / "profiles"
        self._models = ModelStore(task.scratch)
        self._settings = GeneratorSettings(
            model=str(make_model(task.scratch / "model", given["shape"], self._size.longest)),
            max_model_len=self._size.longest,
            dtype=given["dtype"],
            kv=KvSettings(
                host_gib=self._size.host_gib,
                disk_gib=self._size.disk_gib,
                host_dir=task.host_folder(int(self._size.host_gib * (1 << 30))),
            ),
            engine_args={"load_format": LOAD_FORMAT, **given["engine_args"]},
        )

    async def usable(self) -> bool:
        """Never: a benchmark that failed may have left an engine behind."""
        return False

    async def close(self) -> None:
        """Do nothing: benchmarks close their engines."""

    async def tiers(self) -> str:
        """Time to first token by tier, against plain vLLM ("plain") and its own prefix cache ("floor")."""
        engines = EngineMaker(self._settings, self._models, at_once=2)
        benchmark = TiersBenchmark(engines, 2, self._size.tier_tokens, self._size.tier_rounds)
        result = await benchmark.run(_quietly)
        times = result.ttft_ms
        figure = (
            ", ".join(f"{case} {time:.1f} ms" for case, time in times.items())
            + f"; host memory {result.host_bytes_per_s / 1e9:.1f} GB/s, disk {result.disk_bytes_per_s / 1e9:.1f} GB/s"
        )
        slower = [case for case in ("gpu", "host", "disk") if times[case] >= times["plain"]]
        if slower and not self._small:
            raise ValueError(f"computing is faster than KV from {', '.join(slower)}: {figure}")
        return figure

    async def replay(self) -> str:
        """Time to first token and throughput against vLLM's own prefix cache, under Poisson arrivals."""
        # Imported late, because they need many more packages: those of the controller and the retriever.
        from benchmarks.measuring.systems import OURS, Systems
        from benchmarks.replay import ReplayBenchmark, ReplaySettings
        from cachectl.settings import ControllerSettings

        size = self._size
        engines = EngineMaker(self._settings, self._models, at_once=2, kv_tokens=size.kv_tokens)
        systems = Systems(engines, ControllerSettings(), self._profiles)
        settings = ReplaySettings(size.requests, size.requests, 0, size.rates)
        every = list(self._prompts(size.documents, size.document_tokens, size.prompts))
        result = await ReplayBenchmark(systems, [_BASELINE], settings).run(every, _drawn(every), _quietly)
        ratio, throughput = result.ttft_ratio[_BASELINE], result.throughput_ratio[_BASELINE]
        hits = result.systems[OURS].unloaded.token_hit_rate
        figure = (
            f"mean TTFT {ratio:.2f} x lower ({result.ttft_ratio_unloaded[_BASELINE]:.2f} unloaded), throughput "
            f"{throughput:.2f} x higher, {hits:.0%} of tokens cached"
        )
        if ratio < 1 and not self._small:
            raise ValueError(f"vLLM's own prefix cache is faster: {figure}")
        return figure

    def _prompts(self, documents: int, tokens: int, count: int) -> Iterator[Prompt]:
        """Prompts of two documents each, no two of the same in the same order."""
        drawn = random.Random(0)  # noqa: S311 - a repeatable draw
        pairs = [(one, other) for one in range(documents) for other in range(documents) if one != other]
        for number, pair in enumerate(drawn.sample(pairs, count)):
            yield Prompt(
                (
                    random_segment("system", 32, SegmentKind.SYSTEM),
                    *(random_segment(f"document {one}", tokens) for one in pair),
                    random_segment(f"question {number}", 20, SegmentKind.QUESTION),
                )
            )


def _drawn(prompts: list[Prompt]) -> Iterator[Prompt]:
    """Endless draws, in which a prompt's popularity falls with its rank."""
    draw = random.Random(1)  # noqa: S311 - a repeatable draw
    weights = [1 / rank for rank in range(1, len(prompts) + 1)]
    while True:
        yield from draw.choices(prompts, weights)


def _quietly(_step: str, _done: int, _total: int) -> None:
    """Report no progress: the supervisor shows which check runs."""
