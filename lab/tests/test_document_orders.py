"""The orders benchmark's arithmetic with scripted systems, and the document order in the engine's prompts."""

import asyncio
from contextlib import asynccontextmanager
from itertools import groupby

import pytest

from cachectl.settings import ControllerSettings
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import random_segment
from generator.engines.factory import GeneratorFactory
from generator.models import ModelStore
from generator.settings import FakeEngineSettings, GeneratorSettings
from protocol.generation import PrefillResult, Sampling
from protocol.plans import DocumentOrder
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.retrieval import Chunk
from ragtree_lab.measuring.local_stack import LocalStack
from ragtree_lab.measuring.systems import System
from ragtree_lab.orders import Arrangement, OrdersBenchmark, OrdersSettings
from ragtree_lab.workloads.datasets import Question
from ragtree_lab.workloads.topics import FoundQuestion

RETRIEVAL, CANONICAL, CACHED_FIRST = DocumentOrder
ROOM = 3
SCORES = (0.9, 0.8, 0.7, 0.6)
"""Documents that fit a prompt."""


def chunk(name: str, text: str = "nothing") -> Chunk:
    return Chunk(name, name, name, 0, text, name)


def found(number: int, *chunks: Chunk, answers=("red fox",)) -> FoundQuestion:
    return FoundQuestion(Question(str(number), f"question {number}", (), answers), chunks, SCORES)


class WordLayout:
    """A layout that keeps a few documents. The question's text is its segment's key."""

    def lay_out(self, messages, chunks, max_tokens):
        documents = [Segment(SegmentKind.DOCUMENT, each.content_hash, (1, 2)) for each in chunks[:ROOM]]
        question = Segment(SegmentKind.QUESTION, messages[0].content, (max_tokens,))
        return Prompt((*documents, question), max(0, len(chunks) - ROOM))


class ScriptedSystems:
    """A system for each order, with scripted answers per question and cached tokens out of 100."""

    def __init__(self, answers: dict[DocumentOrder, list[str]], cached: dict[DocumentOrder, int]) -> None:
        self._answers = answers
        self._cached = cached
        self.asked: dict[DocumentOrder, list[str]] = {order: [] for order in DocumentOrder}
        self.log: list[tuple[str, DocumentOrder]] = []
        self.max_tokens: set[int] = set()
        self.scores: set[tuple[float, ...]] = set()
        self.started = 0

    @asynccontextmanager
    async def ours(self, order):
        self.started += 1
        asked = self.asked[order]

        async def answer(prompt, sampling, scores):
            self.scores.add(scores)
            self.max_tokens.add(sampling.max_tokens)
            asked.append(prompt.segments[-1].key)
            self.log.append(("answer", order))
            prefill = PrefillResult(100, self._cached[order], 1.0)
            text = self._answers[order][int(asked[-1].split()[1])]
            return Generation(10.0 * len(asked), prefill, text, ())

        async def settle():
            self.log.append(("settle", order))

        yield System(answer, settle)


def in_every_order(systems):
    return {Arrangement(order): systems for order in DocumentOrder}


@pytest.fixture
def questions():
    return [
        found(0, chunk("one", "A red fox!"), chunk("two")),
        # The document with the answer does not fit.
        found(1, chunk("two"), chunk("three"), chunk("four"), chunk("five", "red fox")),
        found(2, chunk("six"), chunk("five", "a blue fox"), answers=("no fox", "blue fox")),
    ]


@pytest.fixture
def systems():
    return ScriptedSystems(
        {
            RETRIEVAL: ["the red fox", "cat", "blue fox"],
            CANONICAL: ["red", "cat", "blue fox"],
            CACHED_FIRST: ["red fox", "A red fox cub.", "fox"],
        },
        {RETRIEVAL: 10, CANONICAL: 20, CACHED_FIRST: 40},
    )


@pytest.fixture
async def result(systems, questions):
    settings = OrdersSettings(at_once=2, max_tokens=7, instruction="Be short.", seed=0)
    return await OrdersBenchmark(in_every_order(systems), WordLayout(), settings).run(
        {"tales": questions}, lambda *_: None
    )


async def test_all_orders_get_the_same_questions_in_the_same_sequence(result, systems):
    # The second question shares a document with the first, so they are not asked together.
    asked = [f"question {number}\nBe short." for number in (0, 2, 1)]
    assert systems.asked == dict.fromkeys(DocumentOrder, asked)
    assert (systems.max_tokens, systems.scores) == ({7}, {SCORES})


async def test_orders_take_turns_by_batch_and_wait_until_the_stack_is_idle(result, systems):
    turns = [(what, order, len(list(times))) for (what, order), times in groupby(systems.log)]
    first = [(RETRIEVAL, 2), (CANONICAL, 2), (CACHED_FIRST, 2)]
    second = [(CANONICAL, 1), (CACHED_FIRST, 1), (RETRIEVAL, 1)]
    expected = [step for order, count in first + second for step in (("answer", order, count), ("settle", order, 1))]
    assert turns == expected


async def test_each_order_has_a_row(result):
    rows = {row.order: row for row in result.rows}
    assert list(rows) == list(DocumentOrder)
    assert {(row.set, row.questions, row.mean_ttft_ms) for row in result.rows} == {("tales", 3, 20.0)}
    assert {order: row.token_hit_rate for order, row in rows.items()} == {
        RETRIEVAL: 0.1,
        CANONICAL: 0.2,
        CACHED_FIRST: 0.4,
    }
    assert {order: row.exact_match for order, row in rows.items()} == {
        RETRIEVAL: pytest.approx(2 / 3),
        CANONICAL: pytest.approx(1 / 3),
        CACHED_FIRST: pytest.approx(1 / 3),
    }
    assert {order: row.subspan_match for order, row in rows.items()} == {
        RETRIEVAL: pytest.approx(2 / 3),
        CANONICAL: pytest.approx(1 / 3),
        CACHED_FIRST: pytest.approx(2 / 3),
    }
    # "red" for "red fox" and "fox" for "blue fox" score 2/3 each, "red fox cub" scores 4/5.
    assert {order: row.f1 for order, row in rows.items()} == {
        RETRIEVAL: pytest.approx(2 / 3),
        CANONICAL: pytest.approx(5 / 9),
        CACHED_FIRST: pytest.approx(37 / 45),
    }


async def test_differences_are_paired_by_question(result):
    retrieval, canonical, cached_first = result.rows
    assert retrieval.f1_over_retrieval is retrieval.subspan_over_retrieval is None
    assert canonical.subspan_over_retrieval.mean == pytest.approx(-1 / 3)
    assert cached_first.subspan_over_retrieval.mean == pytest.approx(0)
    assert canonical.f1_over_retrieval.mean == pytest.approx(-1 / 9)
    assert cached_first.f1_over_retrieval.mean == pytest.approx(37 / 45 - 2 / 3)
    for row in (canonical, cached_first):
        difference = row.f1_over_retrieval
        assert difference.low <= difference.mean <= difference.high
    # The differences are -1/3, 0 and 0. No resample is above 0, and one in 27 has only the first.
    assert canonical.f1_over_retrieval.low == pytest.approx(-1 / 3)
    assert canonical.f1_over_retrieval.high == 0


async def test_answer_in_prompt_counts_only_documents_of_the_prompt(result):
    # True for the first and the third question: one alternative is enough, but its document must fit.
    assert [row.answer_in_prompt for row in result.rows] == [pytest.approx(2 / 3)] * 3
    # Of the seven documents that fit, one is repeated.
    assert [row.repeated_documents for row in result.rows] == [pytest.approx(1 / 7)] * 3


async def test_each_set_starts_with_an_empty_cache(systems, questions):
    settings = OrdersSettings(at_once=4, max_tokens=7, instruction="", seed=0)
    asked = {"tales": questions, "more": questions}
    result = await OrdersBenchmark(in_every_order(systems), WordLayout(), settings).run(asked, lambda *_: None)
    assert [row.set for row in result.rows] == ["tales"] * 3 + ["more"] * 3
    assert systems.started == 6
    assert systems.asked[RETRIEVAL][0] == "question 0"


async def test_an_order_may_run_with_and_without_a_bound(systems, questions):
    bounded = Arrangement(DocumentOrder.CACHED_FIRST, 0.05)
    settings = OrdersSettings(at_once=4, max_tokens=7, instruction="", seed=0)
    benchmark = OrdersBenchmark({**in_every_order(systems), bounded: systems}, WordLayout(), settings)
    result = await benchmark.run({"tales": questions}, lambda *_: None)
    assert [row.order for row in result.rows] == [*DocumentOrder, "cached-first within 0.05"]


async def test_questions_asked_together_share_no_document(systems):
    systems._answers = {order: [""] * 12 for order in DocumentOrder}
    names = ["ab", "ac", "de", "af", "ad", "gh", "ab", "ij", "kl", "ca", "mn", "op"]
    questions = [found(number, *(chunk(name) for name in pair)) for number, pair in enumerate(names)]
    settings = OrdersSettings(at_once=4, max_tokens=7, instruction="", seed=0)
    await OrdersBenchmark(in_every_order(systems), WordLayout(), settings).run({"tales": questions}, lambda *_: None)
    handfuls = [
        len(list(times)) for (what, order), times in groupby(systems.log) if what == "answer" and order is RETRIEVAL
    ]
    asked = iter(int(key.split()[1]) for key in systems.asked[RETRIEVAL])
    taken = [[next(asked) for _ in range(count)] for count in handfuls]
    assert taken[0] == [0, 2, 5, 7], "in sequence, except for questions that have to wait"
    assert sorted(number for handful in taken for number in handful) == list(range(12))
    for handful in taken:
        assert len(handful) <= 4
        documents = "".join(names[number] for number in handful)
        assert len(set(documents)) == len(documents)


class WatchedEngine:
    """The fake engine. Records its plans and the largest number of concurrent streams."""

    def __init__(self, folder, **settings) -> None:
        speeds = FakeEngineSettings(prefill_tokens_per_s=1e6, decode_tokens_per_s=100)
        self._engine = GeneratorFactory(
            GeneratorSettings(engine="fake", fake=speeds, **settings), ModelStore(folder)
        ).engine()
        self._under_way = 0
        self.plans = []
        self.most_at_once = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def stream(self, plan, sampling):
        self.plans.append(plan)
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        async for step in self._engine.stream(plan, sampling):
            yield step
        self._under_way -= 1


def prompt_of(*names: str) -> Prompt:
    return Prompt((*(random_segment(name, 5) for name in names), random_segment("question", 5, SegmentKind.QUESTION)))


@pytest.mark.parametrize("order", list(DocumentOrder))
async def test_engine_gets_documents_in_the_requested_order(tmp_path, order):
    engine = WatchedEngine(tmp_path)
    await engine.start()
    async with LocalStack.over({"generator": engine}, ControllerSettings(), tmp_path) as stack:
        came = await stack.answer(prompt_of("b", "c", "a"), "tenant", Sampling(2), order=order)
    await engine.close()
    assert came.tokens == 2
    expected = ["a", "b", "c"] if order is CANONICAL else ["b", "c", "a"]
    assert [segment.key for segment in engine.plans[0].prompt.documents] == expected


async def test_answers_are_decoded_together_but_prefilled_one_at_a_time(tmp_path):
    engine = WatchedEngine(tmp_path, max_model_len=30)
    await engine.start()
    async with LocalStack.over({"generator": engine}, ControllerSettings(), tmp_path) as stack:
        await asyncio.gather(*(stack.answer(prompt_of("a", "b", "c"), "tenant", Sampling(8)) for _ in range(2)))
        assert (await stack.stats()).completed == 2
    await engine.close()
    assert engine.most_at_once == 2
