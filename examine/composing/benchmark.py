"""Compose: answers of composed prompts against those of full prefills, by task, method and share.

Every chunk of a prompt but the first has KV that was computed behind another chunk, which the prompt does not have. A
question is then answered over the KV of a full prefill, and after each way to compose it. All answers are greedy. The
baseline is the full prefill; the way ``full`` is another one, which shows how much of a difference is rounding.

Speed is measured apart, on prompts of real text that are sent alone, in turn with full prefills. It includes everything
between a plan and its first token: loading, moving, selecting and computing. Documents of random tokens would not do:
the question attends to the last of them, and what is computed there attends to all others, so it takes longer.

Limits: no controller and no search; one engine. Quality depends on the model: where its full prefills score little,
a comparison says little.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec

from examine.composing.composed_plans import ComposedPlans
from examine.composing.rows import FULL, Answered, ComposeResult, ComposeRow, Way, row_of
from examine.composing.tasks import Task, opened
from examine.measuring import Progress
from examine.measuring.engines import EngineMaker, Generation, generate
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage, Segment
from protocol.retrieval import Chunk

_ALTERNATIVES = 20
_SPEED = "measuring the speed"

Enough: TypeAlias = Callable[[Sequence[ComposeRow]], bool]
"""Whether a task's rows say enough, one for each way."""


def _ask_all(rows: Sequence[ComposeRow]) -> bool:  # noqa: ARG001
    return False


class SpeedProbe(NamedTuple):
    """Prompts to measure speed on: one to warm up, then at least another. Documents are cut to ``document_tokens``."""

    tasks: Sequence[Task]
    document_tokens: int


class ComposeBenchmark:
    """Asks tasks in each of the ``ways`` on one engine of the model ``model``, whose prompts ``layout`` lays out.

    Once it runs, ``fingerprint`` is that of the engine's KV.
    """

    def __init__(
        self,
        engines: EngineMaker,
        model: str,
        layout: SegmentLayout,
        tokenizer: ModelTokenizer,
        ways: Sequence[Way],
        progress: Progress,
    ) -> None:
        self._engines = engines
        self._model = model
        self._layout = layout
        self._tokenizer = tokenizer
        self._ways = ways
        self._progress = progress
        self._answered: dict[str, dict[Way, list[Answered]]] = {}
        self._speedups: dict[Way, float] = {}
        self.fingerprint = ""

    @classmethod
    def over(
        cls, generator: GeneratorSettings, cache_dir: Path, ways: Sequence[Way], progress: Progress
    ) -> "ComposeBenchmark":
        """The benchmark of a generator with these settings, whose model is in ``cache_dir`` or is put there."""
        models = ModelStore(cache_dir)
        tokenizer = ModelTokenizer(models.resolve(generator.model))
        layout = SegmentLayout.configured(tokenizer, generator)
        return cls(EngineMaker(generator, models), generator.model, layout, tokenizer, ways, progress)

    @property
    def has_results(self) -> bool:
        """Whether any question has been answered in every way."""
        return bool(self._measured())

    def result(self, *, complete: bool) -> ComposeResult:
        """What has been measured so far. An unfinished task has rows of the questions that were asked."""
        rows = [
            msgspec.structs.replace(row, prefill_speedup=self._speedups.get(Way(row.method, row.share)))
            for name in self._measured()
            for row in self._rows_of(name)
        ]
        return ComposeResult(rows, complete)

    async def run(
        self, tasks: Mapping[str, Sequence[Task]], speed: SpeedProbe | None = None, enough: Enough = _ask_all
    ) -> None:
        """Measure. A task ends early, after one or two thirds of its questions, if its rows are ``enough``.

        Raises ConfigError if the engine cannot compose or lacks a method, and what the engine raises.
        """
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with self._engines.caching(Path(folder), disk_gib=0) as engine:
                info = await engine.info()
                kv = info.kv
                if kv is None or info.composing is None:
                    raise ConfigError(info.not_composing or "the engine keeps no KV, so there is nothing to compose")
                self._check_methods(info.composing.methods)
                self.fingerprint = kv.fingerprint
                if speed is not None:
                    await self._measure_speed(engine, kv.page_tokens, speed)
                for name, asked in tasks.items():
                    await self._ask(engine, kv.page_tokens, name, asked, enough)

    def _check_methods(self, known: Sequence[str]) -> None:
        for way in self._ways:
            if way.method not in (FULL, *known):
                raise ConfigError(f"the engine has no method {way.method!r}, but {', '.join(known)}", "methods")

    async def _ask(
        self, engine: VllmEngine, page_tokens: int, name: str, tasks: Sequence[Task], enough: Enough
    ) -> None:
        answered: dict[Way, list[Answered]] = {way: [] for way in self._ways}
        self._answered[name] = answered
        looks = {len(tasks) // 3, 2 * len(tasks) // 3}
        asked, questions_in_all = 0, sum(len(task.asked) for task in tasks)
        for done, task in enumerate(tasks):
            self._progress(f"asking {name}", asked, questions_in_all)
            if done in looks and done and enough(self._rows_of(name)):
                break
            asked += len(task.asked)
            front, neighbour, questions = self._laid_out(task)
            plans = ComposedPlans(front, neighbour, page_tokens)
            await _prepare(engine, plans, questions[0])
            samplings = [Sampling(one.max_tokens, logprobs=True, alternatives=_ALTERNATIVES) for one in task.asked]
            # At once, because decoding several takes hardly longer than one.
            full, *came = await asyncio.gather(
                _answers(engine, [plans.full(question) for question in questions], samplings),
                *(
                    _answers(engine, [plans.composed(question, way) for question in questions], samplings)
                    for way in self._ways
                ),
            )
            for way, answers in zip(self._ways, came, strict=True):
                answered[way].append(Answered(task.asked, full, answers))
        self._progress(f"asking {name}", questions_in_all, questions_in_all)

    def _measured(self) -> list[str]:
        """The tasks with answers. All ways of a task have the same questions."""
        return [name for name, answered in self._answered.items() if all(answered.values())]

    def _rows_of(self, name: str) -> list[ComposeRow]:
        return [row_of(self._model, name, way, given) for way, given in self._answered[name].items()]

    def _laid_out(self, task: Task) -> tuple[Sequence[Segment], Segment, list[Segment]]:
        """What the task's prompts begin with, the neighbour of its chunks, and its questions."""
        # Every prompt has its own namespace, so keys need only differ within it.
        texts = (*task.chunks, task.neighbour)
        chunks = [Chunk(str(place), str(place), "", place, text, str(place)) for place, text in enumerate(texts)]
        questions = []
        for asked in task.asked:
            prompt = self._layout.lay_out([ChatMessage("user", asked.question)], chunks, asked.max_tokens)
            *front, neighbour, question = opened(prompt, self._tokenizer.encode(asked.opening)).segments
            questions.append(question)
        return front, neighbour, questions

    async def _measure_speed(self, engine: VllmEngine, page_tokens: int, speed: SpeedProbe) -> None:
        took: dict[Way, list[float]] = {way: [] for way in self._ways if way.method != FULL}
        for number, task in enumerate(speed.tasks):
            self._progress(_SPEED, number, len(speed.tasks))
            (system, *documents), neighbour, questions = self._laid_out(task)
            *documents, neighbour = (_cut(document, speed.document_tokens) for document in (*documents, neighbour))
            plans = ComposedPlans((system, *documents), neighbour, page_tokens)
            await _prepare(engine, plans, questions[0])
            for way, ratios in took.items():
                full = await generate(engine, plans.computed(questions[0]), Sampling(1))
                composed = await generate(engine, plans.composed(questions[0], way), Sampling(1))
                # The first task warms up.
                if number:
                    ratios.append(full.ttft_ms / composed.ttft_ms)
        self._progress(_SPEED, len(speed.tasks), len(speed.tasks))
        self._speedups = {way: median(ratios) for way, ratios in took.items()}


def _cut(document: Segment, tokens: int) -> Segment:
    return msgspec.structs.replace(document, token_ids=document.token_ids[:tokens])


async def _prepare(engine: VllmEngine, plans: ComposedPlans, question: Segment) -> None:
    """Compute all KV that the plans use."""
    for plan in plans.prepare(question):
        await generate(engine, plan, Sampling(1))


async def _answers(engine: VllmEngine, plans: Sequence[PrefillPlan], samplings: Sequence[Sampling]) -> list[Generation]:
    return await asyncio.gather(*(generate(engine, *one) for one in zip(plans, samplings, strict=True)))
