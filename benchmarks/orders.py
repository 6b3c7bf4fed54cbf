"""What the order of a prompt's documents does: how much of the prompt is cached then, and how good answers still are.

Each order gets the same questions in the same sequence, on an engine and a controller of its own that begin with
nothing cached: in one cache the orders would compete, and what one keeps would take room from the others. Questions are
asked a few at once, so that the engine decodes them together. With each such handful the orders take turns, one at a
time, and another one begins each time: so whatever else the machine does meets all of them alike.

No two questions of a handful share a document. Cached-first order is made when a query comes and not when its turn has
come, so it knows nothing of what those before it in the queue compute, which the other orders would find.

Engines round differently from batch to batch, and an answer may change by that alone. So the F1 of an order stands
beside the interval of its difference from that of retrieval order, question by question.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import fmean
from typing import NamedTuple

import msgspec

from benchmarks.measuring.answer_scores import exact_match, f1, holds_answer
from benchmarks.measuring.engines import Generation
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.statistics import bootstrap_interval
from benchmarks.measuring.systems import Systems
from benchmarks.workloads.topics import FoundQuestion
from protocol.parts import PromptLayout
from protocol.plans import DocumentOrder
from protocol.prompts import ChatMessage, Prompt

BASELINE = DocumentOrder.RETRIEVAL


class OrdersSettings(msgspec.Struct, frozen=True):
    """How to ask: ``at_once`` questions together, for ``max_tokens`` each; ``instruction`` stands below each question.

    ``seed`` is that of the intervals.
    """

    at_once: int
    max_tokens: int
    instruction: str
    seed: int


class Difference(msgspec.Struct, frozen=True):
    """A mean over questions, and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class OrderRow(msgspec.Struct, frozen=True):
    """An order's questions of one set: share of prompt tokens that were not computed, and mean TTFT in milliseconds.

    The latter is that of questions asked together, of which one waits for another's prefill.

    ``exact_match``, ``subspan_match`` and ``f1`` are means over questions, from 0 to 1
    (`benchmarks.measuring.answer_scores`); the second asks only whether an answer holds a right one (Liu et al.,
    2023), as small models answer in sentences.
    ``f1_over_retrieval`` is how much higher F1 is than in retrieval order; None for that order itself.

    The others are the same for all orders: ``answer_in_prompt``, the share of questions for which a document of the
    prompt holds a right answer, and ``repeated_documents``, the share of prompts' documents that an earlier one had.
    """

    set: str
    order: DocumentOrder
    questions: int
    token_hit_rate: float
    mean_ttft_ms: float
    exact_match: float
    subspan_match: float
    f1: float
    f1_over_retrieval: Difference | None
    answer_in_prompt: float
    repeated_documents: float


class OrdersResult(msgspec.Struct, frozen=True):
    """A row for each set and order, those of a set together and retrieval order first."""

    rows: list[OrderRow]


class OrdersBenchmark:
    """Asks questions with their documents in each order there is. ``layout`` is that of the systems' engines."""

    def __init__(self, systems: Systems, layout: PromptLayout, settings: OrdersSettings) -> None:
        self._systems = systems
        self._layout = layout
        self._settings = settings

    async def run(self, sets: Mapping[str, Sequence[FoundQuestion]], progress: Progress) -> OrdersResult:
        """Ask each set's questions; ``progress`` hears (step, done, total). Raises what layout and systems raise."""
        rows: list[OrderRow] = []
        for name, questions in sets.items():
            handfuls = _handfuls([self._laid_out(found) for found in questions], self._settings.at_once)
            came = await self._ask(name, handfuls, progress)
            rows += self._rows(name, [one for handful in handfuls for one in handful], came)
        return OrdersResult(rows)

    def _laid_out(self, found: FoundQuestion) -> "_Asked":
        # A line of its own: not every set's questions end with a question mark.
        message = ChatMessage("user", f"{found.question.question}\n{self._settings.instruction}".strip())
        prompt = self._layout.lay_out([message], found.chunks, self._settings.max_tokens)
        # Documents that do not fit are those at the end.
        texts = [chunk.text for chunk in found.chunks[: len(prompt.documents)]]
        return _Asked(prompt, found.question.answers, any(holds_answer(text, found.question.answers) for text in texts))

    async def _ask(
        self, name: str, handfuls: Sequence[Sequence["_Asked"]], progress: Progress
    ) -> dict[DocumentOrder, list[Generation]]:
        """What came of the questions, by order."""
        step, total = f"asking {name}", sum(map(len, handfuls))
        came: dict[DocumentOrder, list[Generation]] = {order: [] for order in DocumentOrder}
        async with AsyncExitStack() as running:
            systems = [
                (order, await running.enter_async_context(self._systems.ours(order, self._settings.max_tokens)))
                for order in came
            ]
            for handful in handfuls:
                progress(step, len(came[BASELINE]), total)
                for order, system in systems:
                    came[order] += await asyncio.gather(*(system.answer(one.prompt) for one in handful))
                    # What goes on behind the answers must not slow the next one down.
                    await system.settle()
                systems.append(systems.pop(0))
        progress(step, total, total)
        return came

    def _rows(
        self, name: str, asked: Sequence["_Asked"], came: Mapping[DocumentOrder, Sequence[Generation]]
    ) -> list[OrderRow]:
        right = [one.answers for one in asked]
        scores = {
            order: [f1(one.text, answers) for one, answers in zip(given, right, strict=True)]
            for order, given in came.items()
        }
        return [
            OrderRow(
                set=name,
                order=order,
                questions=len(asked),
                token_hit_rate=sum(one.prefill.cached_tokens for one in given)
                / sum(one.prefill.prompt_tokens for one in given),
                mean_ttft_ms=fmean(one.ttft_ms for one in given),
                exact_match=fmean(exact_match(one.text, answers) for one, answers in zip(given, right, strict=True)),
                subspan_match=fmean(holds_answer(one.text, answers) for one, answers in zip(given, right, strict=True)),
                f1=fmean(scores[order]),
                f1_over_retrieval=None if order is BASELINE else self._difference(scores[order], scores[BASELINE]),
                answer_in_prompt=fmean(one.answer_in_prompt for one in asked),
                repeated_documents=_repeated(asked),
            )
            for order, given in came.items()
        ]

    def _difference(self, scores: Sequence[float], baseline: Sequence[float]) -> Difference:
        differences = [mine - theirs for mine, theirs in zip(scores, baseline, strict=True)]
        return Difference(fmean(differences), *bootstrap_interval(differences, self._settings.seed))


class _Asked(NamedTuple):
    """A question as it is asked, its right answers, and whether a document of the prompt holds one of them."""

    prompt: Prompt
    answers: tuple[str, ...]
    answer_in_prompt: bool

    @property
    def documents(self) -> set[str]:
        return {document.key for document in self.prompt.documents}


def _handfuls(asked: Sequence[_Asked], at_once: int) -> list[list[_Asked]]:
    """The questions by so many, no two of which share a document; those that would wait for a later handful."""
    handfuls = []
    while asked:
        handful: list[_Asked] = []
        waiting: list[_Asked] = []
        taken: set[str] = set()
        for one in asked:
            if len(handful) < at_once and taken.isdisjoint(one.documents):
                handful.append(one)
                taken |= one.documents
            else:
                waiting.append(one)
        handfuls.append(handful)
        asked = waiting
    return handfuls


def _repeated(asked: Sequence[_Asked]) -> float:
    """The share of the prompts' documents that an earlier prompt has already; 0 where there are none."""
    documents = sum(len(one.documents) for one in asked)
    return 1 - len(set().union(*(one.documents for one in asked))) / documents if documents else 0.0
