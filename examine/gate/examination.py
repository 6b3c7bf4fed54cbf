"""Examines on one engine what happens to answers: with one way to compose, or with dependency attention.

The latter compares answers over trees with answers over all paths in full.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from uuid import uuid4

import msgspec

from examine.composing.benchmark import ComposeBenchmark
from examine.composing.rows import Answered, ComposeRow, Way, row_of
from examine.composing.tasks import NEEDLES, Probe, Task, first, needle_tasks, opened
from examine.gate.fact_probes import FACTS, FactTask, fact_tasks
from examine.gate.verdict import decided, verdict
from examine.measuring import Progress
from examine.measuring.engines import EngineMaker, generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from protocol.gate import DEPENDENCY_AT_DEPTH, GateReport
from protocol.generation import Sampling
from protocol.graph import ContextBudget
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
    benchmark = ComposeBenchmark.over(settings, cache_dir, (way,), progress)
    await benchmark.run(probes, enough=decided)
    return verdict(benchmark.result(complete=True).rows, benchmark.fingerprint, time.time())


_ALTERNATIVES = 20

_ALL_FACTS = ContextBudget(relation=sys.maxsize)
"""As many as there is room for. The default is a quarter of it."""


class FactExamination:
    """Asks an engine of a generator's ``settings``, whose model is in ``cache_dir`` or is put there."""

    def __init__(self, settings: GeneratorSettings, cache_dir: Path, progress: Progress) -> None:
        models = ModelStore(cache_dir)
        self._engines = EngineMaker(settings, models)
        self._model = settings.model
        self._tokenizer = ModelTokenizer(models.resolve(settings.model))
        self._layout = SegmentLayout.configured(self._tokenizer, settings)
        self._progress = progress

    async def report(self, questions: int, seed: int) -> GateReport:
        """Ask a bounded number of questions of each kind, until it is clear what trees do to the answers.

        Raises ConfigError if the engine has no attention within trees, and what the engine raises.
        """
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with self._engines.caching(Path(folder), disk_gib=0) as engine:
                info = await engine.info()
                if info.kv is None or info.composing is None:
                    raise ConfigError(info.not_composing or "the engine keeps no KV, so it has no trees")
                if info.composing.no_trees:
                    raise ConfigError(info.composing.no_trees)
                rows = [await self._ask(engine, info.kv.page_tokens, kind, questions, seed) for kind in FACTS]
                fingerprint = info.kv.fingerprint
        return verdict(rows, fingerprint, time.time())

    async def _ask(self, engine: VllmEngine, page_tokens: int, kind: str, questions: int, seed: int) -> ComposeRow:
        per_task = len(next(fact_tasks(kind, seed)).asked)
        tasks = list(islice(fact_tasks(kind, seed), -(-questions // per_task)))
        looks = {len(tasks) // 3, 2 * len(tasks) // 3} - {0}
        answered: list[Answered] = []
        for number, task in enumerate(tasks):
            self._progress(f"asking {kind}", number, len(tasks))
            if number in looks and decided([self._row(kind, answered)]):
                break
            answered.append(await self._answers(engine, page_tokens, task))
        self._progress(f"asking {kind}", len(tasks), len(tasks))
        return self._row(kind, answered)

    def _row(self, kind: str, answered: Sequence[Answered]) -> ComposeRow:
        return row_of(self._model, kind, Way(DEPENDENCY_AT_DEPTH, 0.0), answered)

    async def _answers(self, engine: VllmEngine, page_tokens: int, task: FactTask) -> Answered:
        namespace = uuid4().hex
        prompts = [FactPlans(self._opened(one, task), namespace, page_tokens) for one in task.asked]
        await generate(engine, prompts[0].front, Sampling(1))
        samplings = [Sampling(one.max_tokens, logprobs=True, alternatives=_ALTERNATIVES) for one in task.asked]
        # At once, because decoding several takes hardly longer than one.
        answers = await asyncio.gather(
            *(generate(engine, one.self_attention(), each) for one, each in zip(prompts, samplings, strict=True)),
            *(
                generate(engine, one.dependency(TreePositions.DEPTH, reuse=True), each)
                for one, each in zip(prompts, samplings, strict=True)
            ),
        )
        return Answered(task.asked, answers[: len(prompts)], answers[len(prompts) :])

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

    def __init__(self, prompt: Prompt, namespace: str, page_tokens: int) -> None:
        self._in_trees = prompt.in_trees
        trees = self._in_trees.trees
        assert trees is not None, "the prompt tells no facts"
        self.trees = trees
        # Without the trees that could stand in their place.
        self.in_full = Prompt(prompt.segments)
        system, _, self._question = prompt.segments
        self._path = KvPath((system,), page_tokens, namespace)

    @property
    def front(self) -> PrefillPlan:
        """A plan that computes the system prompt, and keeps it."""
        return self._path.plan(self._question, None, Tier.GPU)

    def self_attention(self) -> PrefillPlan:
        """A plan for the paths in full, behind the system prompt's KV."""
        return self._planned(self.in_full)

    def dependency(self, positions: TreePositions, *, reuse: bool, blind: bool = False) -> PrefillPlan:
        """A plan for the trees, behind the system prompt's KV. ``blind`` branches do not attend to that."""
        front = 0 if blind else self.trees.front
        trees = msgspec.structs.replace(self.trees, front=front, positions=positions, reuse=reuse)
        return msgspec.structs.replace(self._planned(self._in_trees), trees=trees)

    def _planned(self, prompt: Prompt) -> PrefillPlan:
        return msgspec.structs.replace(self._path.plan(self._question, Tier.GPU, None), prompt=prompt)
