"""Compose: answers of composed prompts against those of full prefills, by task, method and share.

Every chunk of a prompt but the first has KV that was computed behind another chunk, which the prompt does not have. A
prompt is then answered after a full prefill, and after each way to compose it. All answers are greedy. The baseline is
the full prefill; a second one shows how much of a difference is rounding.

Speed is measured apart, on prompts of random documents that are sent alone, in turn with full prefills. It includes
everything between a plan and its first token: loading, moving, selecting and computing.

Limits: no controller and no search; one engine. Quality depends on the model: where its full prefills score little,
a comparison says little.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.compose.composed_plans import ComposedPlans
from benchmarks.compose.rows import FULL, ComposeResult, ComposeRow, Way, row_of
from benchmarks.compose.tasks import Task
from benchmarks.measuring.engines import EngineMaker, Generation, generate
from benchmarks.measuring.kv_paths import random_segment
from benchmarks.measuring.progress import Progress
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.prompts import ChatMessage, Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk

_ALTERNATIVES = 20
_SPEED = "measuring the speed"


class ComposeSettings(msgspec.Struct, frozen=True):
    """What to measure: ``ways`` to prefill, and ``rounds`` of speed on ``documents`` of ``document_tokens`` tokens."""

    ways: tuple[Way, ...]
    rounds: int
    documents: int
    document_tokens: int


class ComposeBenchmark:
    """Asks tasks in every way on one engine of the model named ``model``, whose prompts ``layout`` lays out.

    Once it runs, ``fingerprint`` is that of the engine's KV.
    """

    def __init__(
        self,
        engines: EngineMaker,
        model: str,
        layout: SegmentLayout,
        tokenizer: ModelTokenizer,
        settings: ComposeSettings,
        progress: Progress,
    ) -> None:
        self._engines = engines
        self._model = model
        self._layout = layout
        self._tokenizer = tokenizer
        self._settings = settings
        self._progress = progress
        self._rows: list[ComposeRow] = []
        self._speedups: dict[Way, float] = {}
        self.fingerprint = ""

    @classmethod
    def over(
        cls, generator: GeneratorSettings, cache_dir: Path, settings: ComposeSettings, progress: Progress
    ) -> "ComposeBenchmark":
        """The benchmark of a generator with these settings, whose model is in ``cache_dir`` or is put there."""
        models = ModelStore(cache_dir)
        tokenizer = ModelTokenizer(models.resolve(generator.model))
        layout = SegmentLayout(tokenizer, generator.system_prompt, generator.max_model_len)
        return cls(EngineMaker(generator, models), generator.model, layout, tokenizer, settings, progress)

    @property
    def has_results(self) -> bool:
        """Whether any task has been measured."""
        return bool(self._rows)

    def result(self, *, complete: bool) -> ComposeResult:
        """What has been measured so far."""
        rows = [
            msgspec.structs.replace(row, prefill_speedup=self._speedups.get(Way(row.method, row.share)))
            for row in self._rows
        ]
        return ComposeResult(rows, complete)

    async def run(self, tasks: Mapping[str, Sequence[Task]]) -> None:
        """Measure. Raises ConfigError if the engine cannot compose, and what the engine raises."""
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with self._engines.caching(Path(folder), disk_gib=0) as engine:
                info = await engine.info()
                kv = info.kv
                if kv is None or info.composing is None:
                    raise ConfigError(info.not_composing or "the engine keeps no KV, so there is nothing to compose")
                self.fingerprint = kv.fingerprint
                if self._settings.rounds:
                    await self._measure_speed(engine, kv.page_tokens)
                for name, asked in tasks.items():
                    await self._ask(engine, kv.page_tokens, name, asked)

    async def _ask(self, engine: VllmEngine, page_tokens: int, name: str, tasks: Sequence[Task]) -> None:
        full: list[Generation] = []
        came: dict[Way, list[Generation]] = {way: [] for way in self._settings.ways}
        for done, task in enumerate(tasks):
            self._progress(f"asking {name}", done, len(tasks))
            sampling = Sampling(task.max_tokens, logprobs=True, alternatives=_ALTERNATIVES)
            plans = ComposedPlans(*self._laid_out(task), page_tokens)
            await _prepare(engine, plans)
            full.append(await generate(engine, plans.full(), sampling))
            answers = await asyncio.gather(
                *(generate(engine, plans.composed(way), sampling) for way in self._settings.ways)
            )
            for way, answer in zip(self._settings.ways, answers, strict=True):
                came[way].append(answer)
        self._progress(f"asking {name}", len(tasks), len(tasks))
        self._rows += [row_of(self._model, name, way, tasks, full, given) for way, given in came.items()]

    def _laid_out(self, task: Task) -> tuple[Prompt, Segment]:
        """The task's prompt, and the neighbour of its chunks."""
        # Every prompt has a namespace of its own, so keys need only differ within it.
        texts = (*task.chunks, task.neighbour)
        chunks = [Chunk(str(place), str(place), "", place, text, str(place)) for place, text in enumerate(texts)]
        prompt = self._layout.lay_out([ChatMessage("user", task.question)], chunks, task.max_tokens)
        *front, neighbour, question = prompt.segments
        opened = question.token_ids + self._tokenizer.encode(task.opening)
        segments = (*front, msgspec.structs.replace(question, token_ids=opened))
        return msgspec.structs.replace(prompt, segments=segments), neighbour

    async def _measure_speed(self, engine: VllmEngine, page_tokens: int) -> None:
        settings, sampling = self._settings, Sampling(1)
        took: dict[Way, list[float]] = {way: [] for way in settings.ways if way.method != FULL}
        for number in range(-1, settings.rounds):
            self._progress(_SPEED, number + 1, settings.rounds + 1)
            documents = (
                random_segment(f"speed {number} {place}", settings.document_tokens)
                for place in range(settings.documents)
            )
            system = random_segment(f"speed {number} system", 45, SegmentKind.SYSTEM)
            question = random_segment(f"speed {number} question", 40, SegmentKind.QUESTION)
            neighbour = random_segment(f"speed {number} neighbour", settings.document_tokens)
            plans = ComposedPlans(Prompt((system, *documents, question)), neighbour, page_tokens)
            await _prepare(engine, plans)
            for way, ratios in took.items():
                full = await generate(engine, plans.full(), sampling)
                composed = await generate(engine, plans.composed(way), sampling)
                # The first round warms up.
                if number >= 0:
                    ratios.append(full.ttft_ms / composed.ttft_ms)
        self._progress(_SPEED, settings.rounds + 1, settings.rounds + 1)
        self._speedups = {way: median(ratios) for way, ratios in took.items()}


async def _prepare(engine: VllmEngine, plans: ComposedPlans) -> None:
    """Compute the documents' own KV."""
    for plan in plans.donors():
        await generate(engine, plan, Sampling(1))
