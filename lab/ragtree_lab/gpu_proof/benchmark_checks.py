"""Level 3: the project's own benchmarks, with random weights and random prompts."""

import math
import random
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from examine.measuring.kv_paths import random_segment
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import ConfigError
from protocol.prompts import Prompt, SegmentKind
from protocol.tiers import Tier
from ragtree_lab.fixed_costs.load_costs import LENGTHS, TIERS, LoadCosts
from ragtree_lab.gpu_proof.models import make_model
from ragtree_lab.gpu_proof.process import Task
from ragtree_lab.gpu_proof.random_weights import LOAD_FORMAT
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.tiers import TiersBenchmark
from ragtree_lab.workloads.prompt_streams import Arrival, poisson
from ragtree_lab.workloads.retrieved_prompts import document_tokens

if TYPE_CHECKING:
    from ragtree_lab.replay.benchmark import ReplayBenchmark
    from ragtree_lab.replay.results import ReplayResult

_BASELINE = "vllm-prefix"
_MOST_MS = {Tier.HOST: 0.7, Tier.DISK: 1.5}
"""What a load may take above vLLM's own cache."""


class _Size(NamedTuple):
    """How much is measured: ``host_gib`` and ``disk_gib`` are room for KV.

    A replay has an engine's KV cache of ``kv_tokens``, and ``replay_gib`` in host memory and on disk. Its ``prompts``
    have two of ``documents`` documents, each of ``document_tokens`` tokens; a rate lasts for ``requests`` of them.
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
    replay_gib: float


_SMALL = _Size(
    longest=512,
    host_gib=0.1,
    disk_gib=0.2,
    tier_tokens=200,
    tier_rounds=1,
    kv_tokens=1024,
    documents=16,
    document_tokens=100,
    prompts=600,
    requests=8,
    replay_gib=0.001,
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
    prompts=2400,
    requests=48,
    replay_gib=3.0,
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
        engines = ComparedEngines(self._settings, self._models, at_once=2)
        benchmark = TiersBenchmark(engines, 2, self._size.tier_tokens, self._size.tier_rounds)
        result = await benchmark.run(_quietly)
        times = result.ttft_ms
        figure = (
            ", ".join(f"{case} {time:.1f} ms" for case, time in times.items())
            + f"; host memory {result.host_bytes_per_s / 1e9:.1f} GB/s, disk {result.disk_bytes_per_s / 1e9:.1f} GB/s"
        )
        # A disk may be slower than a fast GPU: a stack knows both times, and computes then.
        slower = [case for case in ("gpu", "host") if times[case] >= times["plain"]]
        if slower and not self._small:
            raise ValueError(f"computing is faster than KV from {', '.join(slower)}: {figure}")
        return figure

    async def fixed_costs(self) -> str:
        """What a load takes above vLLM's own cache, with asynchronous scheduling, CUDA's default."""
        lengths = [length for length in LENGTHS if length < self._size.longest]
        engines = ComparedEngines(self._settings, self._models, at_once=2)
        by_length = await LoadCosts(engines, lengths, 2 * self._size.tier_rounds).run(
            async_scheduling=True, progress=_quietly
        )
        figure = "; ".join(
            f"{length} tokens: floor {took['floor']:.1f} ms, "
            + ", ".join(f"{tier} {took[tier]:+.2f} ms" for tier in TIERS)
            for length, took in by_length.items()
        )
        late = [tier for tier, most_ms in _MOST_MS.items() if any(took[tier] > most_ms for took in by_length.values())]
        if late and not self._small:
            most = ", ".join(f"{tier} {_MOST_MS[tier]} ms" for tier in late)
            raise ValueError(f"loads take longer than they may ({most}): {figure}")
        return figure

    async def replay(self) -> str:
        """Time to first token and sustained rate against vLLM's own prefix cache, under Poisson arrivals."""
        # Imported late, because they need many more packages: those of the controller and the retriever.
        from cachectl.settings import ControllerSettings
        from ragtree_lab.measuring.systems import OURS, Systems
        from ragtree_lab.replay.benchmark import ReplayBenchmark, ReplaySettings

        size = self._size
        engines = ComparedEngines(self._settings, self._models, at_once=3, kv_tokens=size.kv_tokens)
        gib = size.replay_gib
        systems = Systems(engines, ControllerSettings(), self._profiles, host_gib=gib, disk_gib=gib)
        settings = ReplaySettings(2 * size.requests, size.requests, size.requests, size.requests, 0, 8)
        stream = PairStream(size.documents, size.document_tokens, size.prompts)
        result = await replayed(ReplayBenchmark(systems, [_BASELINE], stream, settings, _quietly))
        ratio, loaded = result.ttft_ratio_unloaded[_BASELINE], result.ttft_ratio.get(_BASELINE)
        throughput = result.throughput_ratio.get(_BASELINE)
        hits = result.systems[OURS].unloaded.token_hit_rate
        figure = (
            f"mean TTFT {ratio:.2f} x lower unloaded, {loaded or math.nan:.2f} x under load, sustained rate "
            f"{throughput or math.nan:.2f} x higher, {hits:.0%} of tokens cached"
        )
        if not result.complete:
            figure += "; the prompts were used up before all rates were found"
        if ratio < 1 and not self._small:
            raise ValueError(f"vLLM's own prefix cache is faster: {figure}")
        return figure


class PromptsUsedUp(ConfigError):
    """A stream has fewer prompts than were asked for."""


async def replayed(benchmark: "ReplayBenchmark") -> "ReplayResult":
    """Run a replay. If its prompts are used up by the search for rates, what it has measured so far counts.

    How many rates a search tries depends on how steady the machine is, and a GPU's time is too dear to drop the rest.
    """
    try:
        await benchmark.run()
    except PromptsUsedUp:
        if not benchmark.has_results:
            raise
        return benchmark.result(complete=False)
    return benchmark.result(complete=True)


class PairStream:
    """A ``PromptStream`` of prompts with two documents each. A first document's popularity falls with its rank."""

    def __init__(self, documents: int, tokens: int, count: int) -> None:
        draws = random.Random(0)  # noqa: S311 - a repeatable draw
        weights = [1 / rank for rank in range(1, documents + 1)]
        prompts = []
        for number in range(count):
            (first,) = draws.choices(range(documents), weights)
            pair = (first, draws.randrange(documents))
            prompts.append(
                Prompt(
                    (
                        random_segment("system", 32, SegmentKind.SYSTEM),
                        *(random_segment(f"document {one}", tokens) for one in pair),
                        random_segment(f"question {number}", 20, SegmentKind.QUESTION),
                    )
                )
            )
        self.document_tokens = document_tokens(prompts)
        self._prompts = iter(prompts)
        self.left = count

    def take(self, count: int) -> list[Prompt]:
        """Return the next prompts. Raises PromptsUsedUp if there are fewer."""
        taken = list(islice(self._prompts, count))
        self.left -= len(taken)
        if len(taken) < count:
            raise PromptsUsedUp("the prompts are used up")
        return taken

    def arrivals(self, rate: float, count: int) -> list[Arrival]:
        """Return the next prompts with Poisson arrivals."""
        return poisson(self.take(count), rate, 0)


def _quietly(_step: str, _done: int, _total: int) -> None:
    """Report no progress: the supervisor shows which check runs."""
