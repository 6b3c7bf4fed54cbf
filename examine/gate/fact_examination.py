"""Examines dependency attention on one engine: answers over trees against answers over all paths in full."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from uuid import uuid4

from examine.composing.rows import Answered, ComposeRow, Way, row_of
from examine.composing.tasks import Probe
from examine.gate.fact_probes import FACTS, FactTask, fact_tasks
from examine.gate.facts import Facts, FactsPrompt
from examine.gate.verdict import decided, verdict
from examine.measuring.engines import EngineMaker, generate
from examine.measuring.opened_prompt import opened
from examine.measuring.progress import Progress
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
from protocol.prompts import ChatMessage, Prompt

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
        prompts = [
            FactsPrompt(Facts(one.question, one.answers, task.paths), self._opened(one, task), namespace, page_tokens)
            for one in task.asked
        ]
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
