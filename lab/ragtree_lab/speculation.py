"""Speculation: compares the stack with and without generating on provisional documents, question by question.

The regime is that of RAGCache, section 7.3: hundreds of thousands of long vectors, searched up to exhaustively.
Retriever, controller and query pipeline are the stack's own, without servers between them. Every question is asked
twice, in alternating order, each time under a namespace of its own, so that no document is cached.

Limits: texts and vectors are synthetic (see `ragtree_lab.workloads.synthetic_vectors`).
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import mean
from typing import ClassVar

import msgspec
from prometheus_client import CollectorRegistry

from cachectl.runtime.controller import Controller
from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.statistics import percentile
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.speculation_start import SpeculationStart
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings, Pace
from gateway.stores.query_log import QueryLogFile
from gateway.tasks import BackgroundTasks
from gateway.wire.events import QueryCompleted
from gateway.wire.reply import Timings
from generator.engines.engine import Engine
from generator.prompts.layout import SegmentLayout
from protocol.errors import InternalError
from protocol.generation import Sampling
from protocol.plans import DocumentOrder
from protocol.prompts import ChatMessage
from protocol.retrieval import SearchKind, SearchRequest
from ragtree_lab.measuring.fixed_instances import FixedInstances
from ragtree_lab.measuring.tuned_index import tuned
from ragtree_lab.workloads.synthetic_vectors import SyntheticVectors
from ragtree_lab.workloads.vector_corpus import COLLECTION, TENANT, VectorEmbedder, ingest_vectors, question
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import ChunkSettings, IndexSettings, IndexTuning, RetrieverSettings

_WARM_UP = 3
"""Questions asked before measuring: an index has to learn its speed."""


class SpeculationSettings(msgspec.Struct, frozen=True):
    """What to ask: ``questions`` per row, for ``top_k`` documents of ``words`` synthetic words, out of ``vectors``.

    Answers have ``max_tokens``. A sweep asks ``sweep_questions`` at each rate, in each mode.
    """

    vectors: int
    dimension: int
    lists: int
    top_k: int
    words: int
    questions: int
    max_tokens: int
    seed: int
    sweep_questions: int
    order: DocumentOrder


class OffOn(msgspec.Struct, frozen=True):
    """Milliseconds without and with speculation."""

    off: float
    on: float

    @property
    def ratio(self) -> float:
        """How many times lower it is with speculation."""
        return self.off / self.on if self.on else 0.0


class RatioRow(msgspec.Struct, frozen=True):
    """Means over the questions at one share of the lists that a search reads.

    ``search_ms`` is without speculation; ``search_slowdown`` is how much longer a search takes next to a generation.
    ``non_overlapped_ms`` is the part of a search during which nothing useful to the answer was computed;
    ``strict_non_overlapped_ms`` is RAGCache's count, to which wrong guesses are never useful. ``confirmed`` is the
    share of questions answered by a speculation, ``generations`` the number started per question.
    ``wasted_prefill_tokens`` were computed for unconfirmed speculations and are in no final prompt's prefix.
    """

    search_ratio: float
    search_ms: float
    search_slowdown: float
    non_overlapped_ms: OffOn
    non_overlapped_ratio: float
    strict_non_overlapped_ms: OffOn
    strict_non_overlapped_ratio: float
    ttft_ms: OffOn
    ttft_ratio: float
    confirmed: float
    generations: float
    wasted_prefill_tokens: float


class RateRow(msgspec.Struct, frozen=True):
    """TTFT under Poisson arrivals of ``rate`` questions per second, and the shares speculated on and confirmed."""

    rate: float
    mean_ttft_ms: OffOn
    p99_ttft_ms: OffOn
    p99_on_over_off: float
    speculated: float
    confirmed: float


class SpeculationResult(msgspec.Struct, frozen=True):
    """Rows of one engine; ``engine`` is its name, ``prompt_tokens`` the mean length of a prompt."""

    engine: str
    order: DocumentOrder
    vectors: int
    dimension: int
    prompt_tokens: float
    rows: list[RatioRow]
    sweep: list[RateRow]


class SpeculationReport(msgspec.Struct, frozen=True):
    """All engines' results by requested name, and the ``rows`` of the first."""

    engine: str
    rows: list[RatioRow]
    engines: dict[str, SpeculationResult]


def strict_non_overlapped_ms(timings: Timings) -> float:
    """RAGCache's count (section 7.3): the part of the search before the confirmed speculation began.

    It is all of the search if no speculation was confirmed.
    """
    speculation = timings.speculation
    if speculation is None or speculation.began_ms is None:
        return timings.retrieval_ms
    return min(speculation.began_ms, timings.retrieval_ms)


class _Parts(msgspec.Struct, frozen=True):
    retriever: Retriever
    controller: Controller
    generator: Engine
    layout: SegmentLayout


class SpeculationBenchmark:
    """Asks questions of a corpus of vectors in ``folder``, which is filled once and kept.

    ``stage_ms`` is the shortest expected time of a search stage, in milliseconds.
    """

    def __init__(
        self,
        settings: SpeculationSettings,
        folder: Path,
        profiles: Path,
        progress: Progress,
        stage_ms: float = IndexSettings.tuning.stage_ms,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._profiles = profiles
        self._progress = progress
        self._controller_settings = ControllerSettings()
        self._embedder = VectorEmbedder(SyntheticVectors(settings.vectors, settings.dimension, settings.seed))
        self._numbers = count()
        self._tuning = IndexTuning(lists=settings.lists, min_probes=1, stage_ms=stage_ms)

    async def prepare(self) -> None:
        """Fill the corpus. The first time takes minutes."""
        # The IVF lists are trained once, over the whole corpus.
        async with self._retriever(IndexSettings(kind="flat")) as retriever:
            await ingest_vectors(retriever, self._settings.vectors, self._settings.words, self._progress)

    async def run(
        self, engine: Engine, layout: SegmentLayout, ratios: Sequence[float], rates: Sequence[float], sweep_ratio: float
    ) -> SpeculationResult:
        """Measure a running engine at each share of the lists, and at each arrival rate with ``sweep_ratio``."""
        instances = FixedInstances({"generator": engine})
        live = LiveController(self._controller_settings, instances, self._profiles, time.monotonic, time.time)
        await live.start(lambda done, total: self._progress("profiling the engine, once", done, total))
        rows: list[RatioRow] = []
        sweep: list[RateRow] = []
        prompt_tokens: list[int] = []
        for ratio in ratios:
            async with self._retriever(self._lists(ratio)) as retriever:
                asker = _Asker(_Parts(retriever, live.controller, engine, layout), self._settings)
                rows.append(await self._row(asker, ratio, prompt_tokens))
        if rates:
            async with self._retriever(self._lists(sweep_ratio)) as retriever:
                asker = _Asker(_Parts(retriever, live.controller, engine, layout), self._settings)
                await self._warm(asker)
                for number, rate in enumerate(rates):
                    sweep.append(await self._rate(asker, rate, number, len(rates)))
        name = (await engine.info()).engine
        settings = self._settings
        return SpeculationResult(
            name, settings.order, settings.vectors, settings.dimension, mean(prompt_tokens), rows, sweep
        )

    async def _row(self, asker: "_Asker", ratio: float, prompt_tokens: list[int]) -> RatioRow:
        asked: dict[bool, list[Timings]] = {False: [], True: []}
        await self._warm(asker)
        for number in range(self._settings.questions):
            self._progress(f"search ratio {ratio:g}", number, self._settings.questions)
            about = self._next_question()
            for on in (number % 2 == 0, number % 2 == 1):
                self._controller_settings.speculation = on
                completed = await asker.ask(about, on)
                prompt_tokens.append(completed.usage.prompt_tokens)
                asked[on].append(completed.timings)

        def means(read: Callable[[Timings], float]) -> OffOn:
            return OffOn(mean(map(read, asked[False])), mean(map(read, asked[True])))

        search = means(lambda timings: timings.retrieval_ms)
        bare = means(lambda timings: timings.non_overlapped_ms)
        strict = means(strict_non_overlapped_ms)
        ttft = means(lambda timings: timings.ttft_ms)
        tried = [timings.speculation for timings in asked[True] if timings.speculation is not None]
        return RatioRow(
            search_ratio=ratio,
            search_ms=search.off,
            search_slowdown=search.on / search.off,
            non_overlapped_ms=bare,
            non_overlapped_ratio=bare.ratio,
            strict_non_overlapped_ms=strict,
            strict_non_overlapped_ratio=strict.ratio,
            ttft_ms=ttft,
            ttft_ratio=ttft.ratio,
            confirmed=sum(each.outcome == "confirmed" for each in tried) / len(asked[True]),
            generations=sum(each.generations for each in tried) / len(asked[True]),
            wasted_prefill_tokens=sum(each.wasted_tokens for each in tried) / len(asked[True]),
        )

    async def _rate(self, asker: "_Asker", rate: float, number: int, of: int) -> RateRow:
        """Ask both modes the same questions at the same times, in four turns: off, on, on, off."""
        asked: dict[bool, list[Timings]] = {False: [], True: []}
        draws = random.Random(f"{self._settings.seed} {rate}")  # noqa: S311 - repeatable arrivals
        turns = []
        for _ in range(2):
            gaps = [draws.expovariate(rate) for _ in range(self._settings.sweep_questions // 2)]
            turns.append([(gap, self._next_question()) for gap in gaps])
        for turn, (which, on) in enumerate([(0, False), (0, True), (1, True), (1, False)]):
            self._progress("rates", 4 * number + turn, 4 * of)
            self._controller_settings.speculation = on
            under_way = []
            at = asyncio.get_running_loop().time()
            for gap, about in turns[which]:
                at += gap
                await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
                under_way.append(asyncio.create_task(asker.ask(about, on)))
            asked[on] += [completed.timings for completed in await asyncio.gather(*under_way)]
        ttfts = {on: [timings.ttft_ms for timings in asked[on]] for on in asked}
        means = OffOn(mean(ttfts[False]), mean(ttfts[True]))
        tails = OffOn(percentile(ttfts[False], 99), percentile(ttfts[True], 99))
        tried = [timings.speculation for timings in asked[True] if timings.speculation is not None]
        total = len(asked[True])
        confirmed = sum(each.outcome == "confirmed" for each in tried)
        return RateRow(rate, means, tails, tails.on / tails.off, len(tried) / total, confirmed / total)

    def _lists(self, ratio: float) -> IndexSettings:
        return tuned(IndexSettings(kind="ivf", probe_share=ratio), self._tuning)

    async def _warm(self, asker: "_Asker") -> None:
        self._controller_settings.speculation = True
        for _ in range(_WARM_UP):
            await asker.ask(self._next_question(), on=True)

    def _next_question(self) -> int:
        number = next(self._numbers)
        self._embedder.question(number)
        return number

    @asynccontextmanager
    async def _retriever(self, index: IndexSettings) -> AsyncGenerator[Retriever]:
        # The vectors are synthetic, so the words of documents and questions say nothing.
        settings = RetrieverSettings(chunks=ChunkSettings(size=4096), index=index, search=SearchKind.DENSE)
        self._progress("opening the index", 0, 1)
        retriever = build_retriever(settings, self._folder, self._embedder)
        await retriever.start()
        try:
            yield retriever
        finally:
            await retriever.close()


class _Patient(GatewaySettings):
    """The gateway's settings where a first step may take as long as it takes."""

    pace: ClassVar[Pace] = Pace(first_step_timeout_s=3600.0)


class _Asker:
    """Sends questions through the query pipeline."""

    def __init__(self, parts: _Parts, settings: SpeculationSettings) -> None:
        self._settings = settings
        self._tasks = BackgroundTasks()
        self._pipeline = QueryPipeline(
            parts,
            metrics=GatewayMetrics(CollectorRegistry()),
            tasks=self._tasks,
            query_log=QueryLogFile(None, 0),
            settings=_Patient(query_timeout_s=3600.0),
            speculation_start=SpeculationStart(),
        )

    async def ask(self, number: int, on: bool) -> QueryCompleted:
        """Return the last event of a question's answer. Raises what the pipeline raises."""
        text = question(number)
        query = Query(
            namespace=f"{number}-{on}",
            caller="",
            model="benchmark",
            search=SearchRequest(TENANT, COLLECTION, text, self._settings.top_k),
            messages=(ChatMessage("user", text),),
            sampling=Sampling(self._settings.max_tokens),
            question_field="query",
            order=self._settings.order,
        )
        events = [event async for event in self._pipeline.run(Transcript(query))]
        await self._tasks.drain(60)
        if not isinstance(events[-1], QueryCompleted):
            raise InternalError("a question was not answered")
        return events[-1]
