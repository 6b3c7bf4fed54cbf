"""What the order of a prompt's documents does: how much of the prompt is cached then, and how good answers still are.

Each order gets the same questions in the same sequence, on an engine and a controller of its own that begin with
nothing cached: in one cache the orders would compete, and what one keeps would take room from the others. Questions are
asked a few at once, so that the engine decodes them together. With each such handful the orders take turns, one at a
time, and another one begins each time: so whatever else the machine does meets all of them alike.

Engines round differently from batch to batch, and an answer may change by that alone. So the F1 of an order stands
beside the interval of its difference from that of retrieval order, question by question.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import mean

import msgspec

from benchmarks.answer_scores import exact_match, f1, holds_answer
from benchmarks.engines import Generation
from benchmarks.progress import Progress
from benchmarks.statistics import bootstrap_interval
from benchmarks.systems import Systems
from benchmarks.topics import FoundQuestion
from protocol.parts import PromptLayout
from protocol.plans import DocumentOrder
from protocol.prompts import ChatMessage, Prompt

BASELINE = DocumentOrder.RETRIEVAL


class OrdersSettings(msgspec.Struct, frozen=True):
    """How to ask: ``at_once`` questions together, for ``max_tokens`` each; ``instruction`` stands behind each question.

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

    ``exact_match`` and ``f1`` are means over questions, from 0 to 1 (`benchmarks.answer_scores`), and
    ``f1_over_retrieval`` how much higher the latter is than in retrieval order; None for that order itself.

    The others are the same for all orders: ``answer_in_prompt``, the share of questions for which a document of the
    prompt holds a right answer, and ``repeated_documents``, the share of prompts' documents that an earlier one had.
    """

    set: str
    order: DocumentOrder
    questions: int
    token_hit_rate: float
    mean_ttft_ms: float
    exact_match: float
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
            prompts = [self._prompt(found) for found in questions]
            came = await self._ask(name, prompts, progress)
            rows += self._rows(name, questions, prompts, came)
        return OrdersResult(rows)

    def _prompt(self, found: FoundQuestion) -> Prompt:
        asked = f"{found.question.question} {self._settings.instruction}".strip()
        return self._layout.lay_out([ChatMessage("user", asked)], found.chunks, self._settings.max_tokens)

    async def _ask(
        self, name: str, prompts: Sequence[Prompt], progress: Progress
    ) -> dict[DocumentOrder, list[Generation]]:
        """What came of the prompts, by order."""
        at_once = self._settings.at_once
        came: dict[DocumentOrder, list[Generation]] = {order: [] for order in DocumentOrder}
        async with AsyncExitStack() as running:
            systems = [
                (order, await running.enter_async_context(self._systems.ours(order, self._settings.max_tokens)))
                for order in came
            ]
            for begin in range(0, len(prompts), at_once):
                progress(f"asking {name}", begin, len(prompts))
                handful = prompts[begin : begin + at_once]
                for order, system in systems:
                    came[order] += await asyncio.gather(*(system.answer(prompt) for prompt in handful))
                    # What goes on behind the answers must not slow the next one down.
                    await system.settle()
                systems.append(systems.pop(0))
        progress(f"asking {name}", len(prompts), len(prompts))
        return came

    def _rows(
        self,
        name: str,
        questions: Sequence[FoundQuestion],
        prompts: Sequence[Prompt],
        came: Mapping[DocumentOrder, Sequence[Generation]],
    ) -> list[OrderRow]:
        right = [found.question.answers for found in questions]
        scores = {
            order: [f1(one.text, answers) for one, answers in zip(given, right, strict=True)]
            for order, given in came.items()
        }
        in_prompt = [
            # Documents that did not fit are those at the end.
            any(holds_answer(chunk.text, found.question.answers) for chunk in found.chunks[: len(prompt.documents)])
            for found, prompt in zip(questions, prompts, strict=True)
        ]
        repeated = _repeated(prompts)
        return [
            OrderRow(
                set=name,
                order=order,
                questions=len(questions),
                token_hit_rate=sum(one.prefill.cached_tokens for one in given)
                / sum(one.prefill.prompt_tokens for one in given),
                mean_ttft_ms=mean(one.ttft_ms for one in given),
                exact_match=mean(exact_match(one.text, answers) for one, answers in zip(given, right, strict=True)),
                f1=mean(scores[order]),
                f1_over_retrieval=None if order is BASELINE else self._difference(scores[order], scores[BASELINE]),
                answer_in_prompt=mean(in_prompt),
                repeated_documents=repeated,
            )
            for order, given in came.items()
        ]

    def _difference(self, scores: Sequence[float], baseline: Sequence[float]) -> Difference:
        differences = [mine - theirs for mine, theirs in zip(scores, baseline, strict=True)]
        return Difference(mean(differences), *bootstrap_interval(differences, self._settings.seed))


def _repeated(prompts: Sequence[Prompt]) -> float:
    """The share of the prompts' documents that an earlier prompt has already; 0 where there are none."""
    keys = [{document.key for document in prompt.documents} for prompt in prompts]
    documents = sum(map(len, keys))
    return 1 - len(set().union(*keys)) / documents if documents else 0.0
