"""Compose: answers of composed prompts against those of full prefills, by task, method and share.

Every chunk of a prompt but the first has KV that was computed after another chunk, which the prompt does not have. A
question is then answered over the KV of a full prefill, and after each way to compose it. All answers are greedy. The
baseline is the full prefill; the way ``full`` is another one, which shows how much of a difference is rounding.

Limits: no controller and no search; one engine. Quality depends on the model: where its full prefills score little,
a comparison says little.
"""

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec

from examine.composing.rows import FULL, Answered, ComposeRow, Way, row_of
from examine.composing.tasks import Probe, Task, opened
from examine.measuring import Progress
from examine.measuring.engines import EngineMaker, Generation, generate
from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError
from protocol.generation import ComposingInfo, Sampling
from protocol.kv import Pages, Paging
from protocol.plans import Donor, PlannedNode, PrefillPlan, Recompute
from protocol.prompts import ChatMessage, Segment
from protocol.retrieval import Chunk
from protocol.tiers import Tier

_ALTERNATIVES = 20

Enough: TypeAlias = Callable[[Sequence[ComposeRow]], bool]
"""Whether a task's rows say enough, one for each way."""


def ask_all(rows: Sequence[ComposeRow]) -> bool:  # noqa: ARG001
    """Whatever the rows say, all questions are asked."""
    return False


class ComposedPlans:
    """Plans for prompts that begin with the same segments: the system prompt and documents, which are donated.

    Each document but the first has KV that was computed elsewhere, as in prompts that were asked before: by turns right
    after the system prompt, and after a ``neighbour`` that the prompts do not have. The documents as they stand in
    the prompts have KV, too, for ``full``. All of it is in host memory, whose pages are as ``paging`` says.
    """

    def __init__(self, prefix: Sequence[Segment], neighbour: Segment, paging: Paging) -> None:
        system, _, *others = prefix
        self._whole = KvPath(prefix, paging)
        namespace = self._whole.namespace
        behind = KvPath((system, neighbour), paging, namespace, self._whole.page_count)
        first_page = self._whole.page_count + behind.page_count
        self._others: list[KvPath] = []
        for number, other in enumerate(others):
            in_front = (system, neighbour) if number % 2 else (system,)
            path = KvPath((*in_front, other), paging, namespace, first_page)
            first_page += path.page_count
            self._others.append(path)
        self._behind = behind
        self._front = [self._whole.pages[0], behind.pages[1]]

    def prepare(self, question: Segment) -> Iterator[PrefillPlan]:
        """The plans that compute and keep all KV."""
        yield self._whole.plan(question, None, Tier.HOST)
        yield _loading(self._behind.plan(question, None, [None, Tier.HOST]), self._front[:1])
        for path in self._others:
            kept = [*[None] * (len(path.segments) - 1), Tier.HOST]
            yield _loading(path.plan(question, None, kept), self._front[: len(kept) - 1])

    def full(self, question: Segment) -> PrefillPlan:
        """A prompt whose documents have the KV of a full prefill."""
        return _loading(self._whole.plan(question, None, None), self._whole.pages)

    def computed(self, question: Segment) -> PrefillPlan:
        """A full prefill of a prompt, which nothing is kept of."""
        return msgspec.structs.replace(self._whole.plan(question, None, None), unshared=True)

    def composed(self, question: Segment, way: Way) -> PrefillPlan:
        """A prefill in this way. The first document stands where it was computed, so it is exact."""
        if way.method == FULL:
            return self.computed(question)
        plan = _loading(self._whole.plan(question, None, None), self._whole.pages[:2])
        nodes = (*plan.nodes[:2], *self._donated(plan.nodes[2:]))
        return msgspec.structs.replace(plan, nodes=nodes, recompute=Recompute(*way))

    def _donated(self, nodes: Iterable[PlannedNode]) -> Iterator[PlannedNode]:
        for node, own in zip(nodes, self._others, strict=True):
            in_front = sum(len(segment.token_ids) for segment in own.segments[:-1])
            donor = Donor(own.keys[-1], Tier.HOST, in_front, own.pages[-1])
            yield msgspec.structs.replace(node, donor=donor)


def _loading(plan: PrefillPlan, pages: Sequence[Pages]) -> PrefillPlan:
    """The plan, with its first nodes loaded from these pages of host memory."""
    loaded = (
        msgspec.structs.replace(node, source=Tier.HOST, pages=own) for node, own in zip(plan.nodes, pages, strict=False)
    )
    return msgspec.structs.replace(plan, nodes=tuple(chain(loaded, plan.nodes[len(pages) :])))


class _Asked(Protocol):
    """A task: questions about the same texts."""

    @property
    def asked(self) -> Sequence[Probe]:
        """The questions."""


TaskT = TypeVar("TaskT", bound=_Asked)


class Comparison(ABC, Generic[TaskT]):
    """Compares answers of one engine after full prefills with those after other ``ways`` to prefill.

    The engine has these settings, and its model is in ``cache_dir`` or is put there. Once it runs, ``fingerprint`` is
    that of its KV.
    """

    def __init__(self, settings: GeneratorSettings, cache_dir: Path, ways: Sequence[Way], progress: Progress) -> None:
        models = ModelStore(cache_dir)
        self._engines = EngineMaker(settings, models)
        self._model = settings.model
        self._tokenizer = ModelTokenizer(models.resolve(settings.model))
        self._layout = SegmentLayout.configured(self._tokenizer, settings)
        self._ways = ways
        self._progress = progress
        self._answered: dict[str, dict[Way, list[Answered]]] = {}
        self.fingerprint = ""

    @property
    def rows(self) -> list[ComposeRow]:
        """A row for each task and way. An unfinished task has rows of the questions that were asked."""
        return [
            row for name, answered in self._answered.items() if all(answered.values()) for row in self._rows_of(name)
        ]

    async def run(self, tasks: Mapping[str, Sequence[TaskT]], enough: Enough = ask_all) -> None:
        """Ask. A task ends early, after one or two thirds of its questions, if its rows are ``enough``.

        Raises ConfigError if the engine does not know a way, and what the engine raises.
        """
        async with self.started() as (engine, paging):
            await self.ask(engine, paging, tasks, enough)

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[tuple[VllmEngine, Paging]]:
        """Run the engine; yields it with its tokens per page. Raises ConfigError if it does not know a way."""
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with self._engines.caching(Path(folder), disk_gib=0) as engine:
                info = await engine.info()
                if info.kv is None or info.composing is None:
                    raise ConfigError(info.not_composing or "the engine keeps no KV, so there is nothing to compose")
                self._check(info.composing)
                self.fingerprint = info.kv.fingerprint
                yield engine, info.kv.paging

    async def ask(
        self, engine: VllmEngine, paging: Paging, tasks: Mapping[str, Sequence[TaskT]], enough: Enough
    ) -> None:
        """Ask as ``run`` does, on an engine that is ``started``."""
        for name, of_kind in tasks.items():
            answered: dict[Way, list[Answered]] = {way: [] for way in self._ways}
            self._answered[name] = answered
            looks = {len(of_kind) // 3, 2 * len(of_kind) // 3} - {0}
            asked, questions = 0, sum(len(task.asked) for task in of_kind)
            for done, task in enumerate(of_kind):
                self._progress(f"asking {name}", asked, questions)
                if done in looks and enough(self._rows_of(name)):
                    break
                asked += len(task.asked)
                full, *came = await self._answers(engine, paging, task)
                for way, answers in zip(self._ways, came, strict=True):
                    answered[way].append(Answered(task.asked, full, answers))
            self._progress(f"asking {name}", questions, questions)

    @abstractmethod
    def _check(self, known: ComposingInfo) -> None:
        """Raise ConfigError if an engine that knows these methods does not know a way."""

    @abstractmethod
    async def _answers(self, engine: VllmEngine, paging: Paging, task: TaskT) -> Sequence[Sequence[Generation]]:
        """Return the answers to a task's questions after full prefills, and then those of each way."""

    def _rows_of(self, name: str) -> list[ComposeRow]:
        return [row_of(self._model, name, way, given) for way, given in self._answered[name].items()]


class ComposeBenchmark(Comparison[Task]):
    """Asks over chunks in each of the ways to compose their KV, and in full."""

    def _check(self, known: ComposingInfo) -> None:
        for way in self._ways:
            if way.method not in (FULL, *known.methods):
                raise ConfigError(f"the engine has no method {way.method!r}, but {', '.join(known.methods)}", "methods")

    async def _answers(self, engine: VllmEngine, paging: Paging, task: Task) -> Sequence[Sequence[Generation]]:
        front, neighbour, questions = self._laid_out(task)
        plans = ComposedPlans(front, neighbour, paging)
        await prepare(engine, plans, questions[0])
        ways = [[plans.full(question) for question in questions]]
        ways += [[plans.composed(question, way) for question in questions] for way in self._ways]
        return await answers_at_once(engine, ways, task.asked)

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


async def prepare(engine: VllmEngine, plans: ComposedPlans, question: Segment) -> None:
    """Compute all KV that the plans use."""
    for plan in plans.prepare(question):
        await generate(engine, plan, Sampling(1))


async def answers_at_once(
    engine: VllmEngine, ways: Sequence[Sequence[PrefillPlan]], asked: Sequence[Probe]
) -> list[list[Generation]]:
    """Return the answers of each way's plans. All at once, because decoding several takes hardly longer than one."""
    samplings = [Sampling(one.max_tokens, logprobs=True, alternatives=_ALTERNATIVES) for one in asked]

    async def of(plans: Sequence[PrefillPlan]) -> list[Generation]:
        return await asyncio.gather(*(generate(engine, *one) for one in zip(plans, samplings, strict=True)))

    return await asyncio.gather(*map(of, ways))
