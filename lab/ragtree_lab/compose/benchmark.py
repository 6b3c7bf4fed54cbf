"""Compose: answers of composed prompts against those of full prefills, and the speed of both.

Speed is measured apart, on prompts of real text that are sent alone, in turn with full prefills. It includes everything
between a plan and its first token: loading, moving, selecting and computing. Documents of random tokens would not do:
the question attends to the last of them, and what is computed there attends to all others, so it takes longer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from examine.composing.benchmark import ComposeBenchmark, ComposedPlans, Enough, prepare
from examine.composing.rows import FULL, ComposeRow, Way
from examine.composing.tasks import Task
from examine.measuring import Progress
from examine.measuring.engines import generate
from generator.engines.vllm_engine import VllmEngine
from generator.settings import GeneratorSettings
from protocol.generation import Sampling
from protocol.kv import Paging
from protocol.prompts import Segment

_SPEED = "measuring the speed"


class SpeedProbe(NamedTuple):
    """Prompts to measure speed on: one to warm up, then at least another. Documents are cut to ``document_tokens``."""

    tasks: Sequence[Task]
    document_tokens: int


class ComposeResult(msgspec.Struct, frozen=True):
    """One row for each task and way. ``complete`` is False if the run was ended before everything was measured."""

    rows: list[ComposeRow]
    complete: bool = True


class SpeedBenchmark(ComposeBenchmark):
    """Measures the speed of the ways, too, on the same engine before it is asked."""

    def __init__(self, settings: GeneratorSettings, cache_dir: Path, ways: Sequence[Way], progress: Progress) -> None:
        super().__init__(settings, cache_dir, ways, progress)
        self._speedups: dict[Way, float] = {}

    def result(self, *, complete: bool) -> ComposeResult:
        """What has been measured so far."""
        rows = [
            msgspec.structs.replace(row, prefill_speedup=self._speedups.get(Way(row.method, row.share)))
            for row in self.rows
        ]
        return ComposeResult(rows, complete)

    async def measure(self, tasks: Mapping[str, Sequence[Task]], speed: SpeedProbe | None, enough: Enough) -> None:
        """Measure the speed, if it is wanted, and ask. Raises as ``run`` does."""
        async with self.started() as (engine, paging):
            if speed is not None:
                await self._measure_speed(engine, paging, speed)
            await self.ask(engine, paging, tasks, enough)

    async def _measure_speed(self, engine: VllmEngine, paging: Paging, speed: SpeedProbe) -> None:
        took: dict[Way, list[float]] = {way: [] for way in self._ways if way.method != FULL}
        for number, task in enumerate(speed.tasks):
            self._progress(_SPEED, number, len(speed.tasks))
            (system, *documents), neighbour, questions = self._laid_out(task)
            *documents, neighbour = (_cut(document, speed.document_tokens) for document in (*documents, neighbour))
            plans = ComposedPlans((system, *documents), neighbour, paging)
            await prepare(engine, plans, questions[0])
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
