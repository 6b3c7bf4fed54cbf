"""Examines on one engine what happens to answers: with one way to compose, or with dependency attention.

The latter compares answers over trees with answers over all paths in full.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from uuid import uuid4

import msgspec

from examine.composing.benchmark import Comparison, ComposeBenchmark, answers_at_once
from examine.composing.rows import ComposeRow, Way
from examine.composing.tasks import NEEDLES, Probe, Task, first, needle_tasks, opened
from examine.gate.fact_probes import FACTS, FactTask, fact_tasks
from examine.measuring import Progress
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from generator.settings import GeneratorSettings
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from protocol.gate import DEPENDENCY_AT_DEPTH, GateReport, GateTask, current_version
from protocol.generation import ComposingInfo, Sampling
from protocol.graph import ContextBudget
from protocol.kv import Paging
from protocol.plans import PrefillPlan
from protocol.prompts import ChatMessage, Prompt
from protocol.tiers import Tier

_CHUNKS = 6
"""Documents of a prompt."""


def probe_set(texts: Sequence[str], questions: int, seed: int) -> Mapping[str, Sequence[Task]]:
    """Return ``questions`` questions of each kind, about codes that are hidden in the texts, several to a prompt."""
    return {kind: first(needle_tasks(kind, texts, _CHUNKS, seed), questions) for kind in NEEDLES}


async def examine(
    settings: GeneratorSettings,
    cache_dir: Path,
    way: Way,
    probes: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> GateReport:
    """Start an engine of these settings and ask it, until it is clear what composing does to its answers.

    Raises ConfigError if it cannot compose, and what the engine raises.
    """
    benchmark = ComposeBenchmark(settings, cache_dir, (way,), progress)
    await benchmark.run(probes, decided)
    return verdict(benchmark.rows, benchmark.fingerprint, time.time())


_ALL_FACTS = ContextBudget(relation=sys.maxsize)
"""As many as there is room for. The default is a quarter of it."""


class FactExamination(Comparison[FactTask]):
    """Asks about facts with dependency attention over their trees, and over all paths in full."""

    def __init__(self, settings: GeneratorSettings, cache_dir: Path, progress: Progress) -> None:
        super().__init__(settings, cache_dir, (Way(DEPENDENCY_AT_DEPTH, 0.0),), progress)

    async def report(self, questions: int, seed: int) -> GateReport:
        """Ask a bounded number of questions of each kind, until it is clear what trees do to the answers.

        Raises ConfigError if the engine has no attention within trees, and what the engine raises.
        """
        per_task = {kind: len(next(fact_tasks(kind, seed)).asked) for kind in FACTS}
        tasks = {kind: list(islice(fact_tasks(kind, seed), -(-questions // each))) for kind, each in per_task.items()}
        await self.run(tasks, decided)
        return verdict(self.rows, self.fingerprint, time.time())

    def _check(self, known: ComposingInfo) -> None:
        if known.no_trees:
            raise ConfigError(known.no_trees)

    async def _answers(self, engine: VllmEngine, paging: Paging, task: FactTask) -> Sequence[Sequence[Generation]]:
        namespace = uuid4().hex
        prompts = [FactPlans(self._opened(one, task), namespace, paging) for one in task.asked]
        await generate(engine, prompts[0].front, Sampling(1))
        in_full = [one.self_attention() for one in prompts]
        in_trees = [one.dependency(TreePositions.DEPTH, reuse=True) for one in prompts]
        return await answers_at_once(engine, (in_full, in_trees), task.asked)

    def _opened(self, asked: Probe, task: FactTask) -> Prompt:
        """The prompt of a question about a task's facts whose answer has begun."""
        opening = self._tokenizer.encode(asked.opening)
        prompt = self._layout.lay_out(
            [ChatMessage("user", asked.question)],
            [],
            len(opening) + asked.max_tokens,
            paths=task.paths,
            budget=_ALL_FACTS,
        )
        if len(prompt.paths) < len(task.paths):
            raise ConfigError("the model's context has no room for the facts of the gate's questions", "max_model_len")
        return opened(prompt, opening)


class FactPlans:
    """One question with its facts, as plans for self-attention and for dependency attention.

    The ``prompt`` is laid out as in serving, with some of the facts' paths and without documents.
    """

    def __init__(self, prompt: Prompt, namespace: str, paging: Paging) -> None:
        self._in_trees = prompt.in_trees
        trees = self._in_trees.trees
        assert trees is not None, "the prompt tells no facts"
        self.trees = trees
        # Without the trees that could stand in their place.
        self.in_full = Prompt(prompt.segments)
        system, _, self._question = prompt.segments
        self._path = KvPath((system,), paging, namespace)

    @property
    def front(self) -> PrefillPlan:
        """A plan that computes the system prompt, and keeps it."""
        return self._path.plan(self._question, None, Tier.GPU)

    def self_attention(self) -> PrefillPlan:
        """A plan for the paths in full, after the system prompt's KV."""
        return self._planned(self.in_full)

    def dependency(self, positions: TreePositions, *, reuse: bool, blind: bool = False) -> PrefillPlan:
        """A plan for the trees, after the system prompt's KV. ``blind`` branches do not attend to that."""
        front = 0 if blind else self.trees.front
        trees = msgspec.structs.replace(self.trees, front=front, positions=positions, reuse=reuse)
        return msgspec.structs.replace(self._planned(self._in_trees), trees=trees)

    def _planned(self, prompt: Prompt) -> PrefillPlan:
        return msgspec.structs.replace(self._path.plan(self._question, Tier.GPU, None), prompt=prompt)


_LEAST_FULL_SCORE = 0.2
"""A model that scores less after a full prefill cannot do a task, so the task tells nothing about composing."""

_MOST_LOST = 0.1
"""The share of the full prefill's score that composing may lose on each task, with 95 % confidence."""

_BOUND_MARGIN = 1.25
"""Over the highest deviation of the questions. A prompt that deviates more is unlike these."""


def decided(rows: Sequence[ComposeRow]) -> bool:
    """Whether more questions would hardly change what the rows say of their task.

    It may be asked twice before all questions are. The interval of the difference has 2.5 % on each side; three looks
    at it are wrong in about 5 % (Pocock 1977).
    """
    return all(
        not task.tells or task.most_lost <= _MOST_LOST or -row.difference.high > _MOST_LOST * row.full_score
        for row, task in zip(rows, map(_task, rows), strict=True)
    )


def verdict(rows: Sequence[ComposeRow], fingerprint: str, now: float) -> GateReport:
    """Judge one way to compose by its rows, one for each task. ``now`` is in seconds since the epoch."""
    tasks = tuple(map(_task, rows))
    why = _objection(tasks)
    return GateReport(
        fingerprint=fingerprint,
        model=rows[0].model,
        method=rows[0].method,
        share=rows[0].share,
        passed=not why,
        why=why,
        tasks=tasks,
        top1_agreement=fmean(row.top1_agreement for row in rows),
        kl=fmean(row.kl for row in rows),
        bound=_BOUND_MARGIN * max(row.deviation for row in rows),
        examined_at=now,
        selection=current_version(rows[0].method),
    )


def _task(row: ComposeRow) -> GateTask:
    tells = row.full_score >= _LEAST_FULL_SCORE
    most_lost = max(0.0, -row.difference.low) / row.full_score if row.full_score else 1.0
    return GateTask(row.task, row.questions, row.score, row.full_score, most_lost, tells)


def _objection(tasks: Sequence[GateTask]) -> str:
    telling = [task for task in tasks if task.tells]
    if not telling:
        return "the model answers too few questions even after a full prefill, so nothing can be said"
    worst = max(telling, key=lambda task: task.most_lost)
    if worst.most_lost > _MOST_LOST:
        return (
            f"on {worst.name}, composing may lose {worst.most_lost:.0%} of the full prefill's score "
            f"({worst.score:.2f} against {worst.full_score:.2f}), more than {_MOST_LOST:.0%}"
        )
    return ""
