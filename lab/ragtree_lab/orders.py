"""Document order: compares how much of a prompt is cached, and how good answers are, for each order of its documents.

Each order runs the same questions in the same sequence on an engine and a controller of its own, starting with an empty
cache: in one cache the orders would compete. Questions run a few at a time, so that the engine batches them. The orders
take turns after each handful, and a different one goes first each time, so that the machine's noise affects all alike.

The questions of a handful share no document. Cached-first order is decided when a query arrives, so it would not see
what the queries before it in the queue compute, while the other orders would hit it.

The baseline is retrieval order. Limits: engines round differently from batch to batch, and answers may change by that
alone. So each score has the confidence interval of its difference from retrieval order, question by question.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import fmean
from typing import NamedTuple

import msgspec

from examine.evaluation.scores import exact_match, f1, holds_answer
from examine.measuring import Progress
from examine.measuring.engines import Generation
from examine.measuring.statistics import bootstrap_interval
from protocol.generation import Sampling
from protocol.parts import PromptLayout
from protocol.plans import DocumentOrder
from protocol.prompts import ChatMessage, Prompt
from ragtree_lab.measuring.systems import Systems
from ragtree_lab.workloads.topics import FoundQuestion


class Arrangement(NamedTuple):
    """An order of documents; ``score_gap`` is that of cached-first order."""

    order: DocumentOrder
    score_gap: float | None = None

    def __str__(self) -> str:
        return self.order if self.score_gap is None else f"{self.order} within {self.score_gap:g}"


BASELINE = Arrangement(DocumentOrder.RETRIEVAL)


class OrdersSettings(msgspec.Struct, frozen=True):
    """How to ask: ``at_once`` questions together, for ``max_tokens`` each, with ``instruction`` below each question.

    ``seed`` is for the confidence intervals.
    """

    at_once: int
    max_tokens: int
    instruction: str
    seed: int


class Difference(msgspec.Struct, frozen=True):
    """Mean over questions, and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class OrderRow(msgspec.Struct, frozen=True):
    """Results of one order on one set: share of prompt tokens not computed, and mean TTFT in milliseconds.

    ``order`` names the arrangement.

    The TTFT is of questions asked together, so it includes waiting for each other's prefills.

    ``exact_match``, ``subspan_match`` and ``f1`` are means over questions, from 0 to 1
    (`examine.evaluation.scores`). A subspan match only needs the answer to contain a right one (Liu et al.,
    2023), because small models answer in sentences. ``f1_over_retrieval`` and ``subspan_over_retrieval`` are the gains
    over retrieval order; None for that order itself.

    The rest is equal for all orders: ``answer_in_prompt`` is the share of questions with a right answer in one of the
    prompt's documents, ``repeated_documents`` the share of documents that an earlier prompt had.
    """

    set: str
    order: str
    questions: int
    token_hit_rate: float
    mean_ttft_ms: float
    exact_match: float
    subspan_match: float
    f1: float
    f1_over_retrieval: Difference | None
    subspan_over_retrieval: Difference | None
    answer_in_prompt: float
    repeated_documents: float


class OrdersResult(msgspec.Struct, frozen=True):
    """One row per set and order, grouped by set, retrieval order first."""

    rows: list[OrderRow]


class OrdersBenchmark:
    """Asks questions with their documents in every arrangement, each on a system of its own.

    ``layout`` must be that of the systems' engines.
    """

    def __init__(self, systems: Mapping[Arrangement, Systems], layout: PromptLayout, settings: OrdersSettings) -> None:
        self._systems = systems
        self._layout = layout
        self._settings = settings

    async def run(self, sets: Mapping[str, Sequence[FoundQuestion]], progress: Progress) -> OrdersResult:
        """Ask each set's questions. ``progress`` is called with (step, done, total).

        Raises what layout and systems raise.
        """
        rows: list[OrderRow] = []
        for name, questions in sets.items():
            handfuls = _handfuls([self._laid_out(found) for found in questions], self._settings.at_once)
            came = await self._ask(name, handfuls, progress)
            rows += self._rows(name, [one for handful in handfuls for one in handful], came)
        return OrdersResult(rows)

    def _laid_out(self, found: FoundQuestion) -> "_Asked":
        # On a line of its own, because not all questions end with a question mark.
        message = ChatMessage("user", f"{found.question.question}\n{self._settings.instruction}".strip())
        prompt = self._layout.lay_out([message], found.chunks, self._settings.max_tokens)
        # The layout drops documents from the end.
        texts = [chunk.text for chunk in found.chunks[: len(prompt.documents)]]
        holds = any(holds_answer(text, found.question.answers) for text in texts)
        return _Asked(prompt, found.scores, found.question.answers, holds)

    async def _ask(
        self, name: str, handfuls: Sequence[Sequence["_Asked"]], progress: Progress
    ) -> dict[Arrangement, list[Generation]]:
        """Return the answers by arrangement."""
        step, total = f"asking {name}", sum(map(len, handfuls))
        sampling = Sampling(self._settings.max_tokens)
        came: dict[Arrangement, list[Generation]] = {arrangement: [] for arrangement in self._systems}
        async with AsyncExitStack() as running:
            systems = [
                (arrangement, await running.enter_async_context(kind.ours(arrangement.order)))
                for arrangement, kind in self._systems.items()
            ]
            for handful in handfuls:
                progress(step, len(came[BASELINE]), total)
                for arrangement, system in systems:
                    came[arrangement] += await asyncio.gather(
                        *(system.answer(one.prompt, sampling, one.scores) for one in handful)
                    )
                    # Background work must not slow the next system down.
                    await system.settle()
                systems.append(systems.pop(0))
        progress(step, total, total)
        return came

    def _rows(
        self, name: str, asked: Sequence["_Asked"], came: Mapping[Arrangement, Sequence[Generation]]
    ) -> list[OrderRow]:
        right = [one.answers for one in asked]
        f1s = {
            arrangement: [f1(one.text, answers) for one, answers in zip(given, right, strict=True)]
            for arrangement, given in came.items()
        }
        subspans = {
            arrangement: [float(holds_answer(one.text, answers)) for one, answers in zip(given, right, strict=True)]
            for arrangement, given in came.items()
        }
        return [
            OrderRow(
                set=name,
                order=str(arrangement),
                questions=len(asked),
                token_hit_rate=sum(one.prefill.cached_tokens for one in given)
                / sum(one.prefill.prompt_tokens for one in given),
                mean_ttft_ms=fmean(one.ttft_ms for one in given),
                exact_match=fmean(exact_match(one.text, answers) for one, answers in zip(given, right, strict=True)),
                subspan_match=fmean(subspans[arrangement]),
                f1=fmean(f1s[arrangement]),
                f1_over_retrieval=self._gain(f1s, arrangement),
                subspan_over_retrieval=self._gain(subspans, arrangement),
                answer_in_prompt=fmean(one.answer_in_prompt for one in asked),
                repeated_documents=_repeated(asked),
            )
            for arrangement, given in came.items()
        ]

    def _gain(self, scores: Mapping[Arrangement, Sequence[float]], arrangement: Arrangement) -> Difference | None:
        if arrangement == BASELINE:
            return None
        differences = [mine - theirs for mine, theirs in zip(scores[arrangement], scores[BASELINE], strict=True)]
        return Difference(fmean(differences), *bootstrap_interval(differences, self._settings.seed))


class _Asked(NamedTuple):
    """A question's prompt and search scores, its right answers, and whether a document of the prompt holds one."""

    prompt: Prompt
    scores: tuple[float, ...]
    answers: tuple[str, ...]
    answer_in_prompt: bool

    @property
    def documents(self) -> set[str]:
        return {document.key for document in self.prompt.documents}


def _handfuls(asked: Sequence[_Asked], at_once: int) -> list[list[_Asked]]:
    """Split the questions into groups of ``at_once`` that share no document; conflicting ones go to a later group."""
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
    """Return the share of documents that an earlier prompt has; 0 without documents."""
    documents = sum(len(one.documents) for one in asked)
    return 1 - len(set().union(*(one.documents for one in asked))) / documents if documents else 0.0
