"""Prompts of real questions with really retrieved documents, drawn by popularity."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from benchmarks.workloads.articles import ArticlePart
from benchmarks.workloads.datasets import Question
from benchmarks.workloads.popularity import PAPER_REQUESTS_SHARE, PAPER_TOP_SHARE, Popularity, cumulated, zipf_weights
from benchmarks.workloads.question_sets import QuestionRetrieval, QuestionSet
from protocol.errors import ConfigError
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt

_CHUNKS = 10
"""Chunks retrieved per question. A question's documents are the first ones that its chunks are in."""


class RetrievedPrompts:
    """Questions grouped by their best document, and prompts drawn from them.

    A document is a part of an article. A question's documents are the first ``top_k`` parts that its chunks, best
    first, are in.
    """

    def __init__(self, parts: Sequence[ArticlePart], layout: PromptLayout, top_k: int, max_tokens: int) -> None:
        self._parts = parts
        self._layout = layout
        self._top_k = top_k
        self._max_tokens = max_tokens
        self._part_of = {paragraph: part.number for part in parts for paragraph in part.paragraphs}
        self._by_first: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)

    def retrieve(self, questions: QuestionSet, retrieval: QuestionRetrieval, count: int, seed: int) -> None:
        """Search for ``count`` questions of the set, drawn with ``seed``, or all.

        Do not call it inside a running event loop.
        """
        order: list[tuple[int, Question]] = list(enumerate(questions.questions()))
        random.Random(seed).shuffle(order)  # noqa: S311 - a repeatable draw
        asked = order[:count]
        found = retrieval.find(questions, asked, _CHUNKS)
        for place, question in asked:
            documents = self._documents([chunk.id.rpartition("#")[0] for chunk in found[place]])
            if len(documents) == self._top_k:
                self._by_first[documents[0]].append((question.question, documents))
        if not self._by_first:
            raise ConfigError(f"retrieval finds no {self._top_k} documents for any question of {questions.name}")

    def all(self) -> Iterator[Prompt]:
        """Yield the prompts of all questions, once each."""
        for asked in self._by_first.values():
            for question, documents in asked:
                yield self._prompt(question, documents)

    def draw(self, popularity: Popularity, seed: int) -> Iterator[Prompt]:
        """Yield prompts without end: by the paper's skew over shuffled documents, or as often as in the set."""
        for question, documents in self._drawn(popularity, random.Random(f"{popularity} {seed}")):  # noqa: S311 - repeatable
            yield self._prompt(question, documents)

    def draw_novel_pairs(self, count: int, seed: int) -> Iterator[Prompt]:
        """Yield ``count`` prompts by the paper's skew, each with a second document that is new behind the first.

        The second document is drawn from all documents. Raises ConfigError if there are too few.
        """
        draws = random.Random(f"pairs {seed}")  # noqa: S311 - a repeatable draw
        if len(self._parts) <= count:
            raise ConfigError(f"{len(self._parts)} documents are too few for {count} pairs that are all new", "pairs")
        followed: set[tuple[int, int]] = set()
        for question, (first, *_) in islice(self._drawn(Popularity.PAPER, draws), count):
            second = first
            while second == first or (first, second) in followed:
                second = draws.randrange(len(self._parts))
            followed.add((first, second))
            yield self._prompt(question, (first, second))

    def _drawn(self, popularity: Popularity, draws: random.Random) -> Iterator[tuple[str, tuple[int, ...]]]:
        firsts = sorted(self._by_first)
        draws.shuffle(firsts)
        if popularity is Popularity.PAPER:
            sums = cumulated(zipf_weights(len(firsts), PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE))
        else:
            sums = cumulated([float(len(self._by_first[first])) for first in firsts])
        while True:
            (first,) = draws.choices(firsts, cum_weights=sums)
            yield draws.choice(self._by_first[first])

    def _prompt(self, question: str, documents: Sequence[int]) -> Prompt:
        chunks = [self._parts[number].chunk for number in documents]
        return self._layout.lay_out([ChatMessage("user", question)], chunks, self._max_tokens)

    def _documents(self, paragraphs: Sequence[str]) -> tuple[int, ...]:
        numbers = dict.fromkeys(self._part_of[paragraph] for paragraph in paragraphs if paragraph in self._part_of)
        return tuple(islice(numbers, self._top_k))


def document_tokens(prompts: Iterable[Prompt]) -> int:
    """Count the KV tokens of the prompts' documents; equal prefixes count once."""
    tokens: dict[tuple[str, ...], int] = {}
    for prompt in prompts:
        path: tuple[str, ...] = ()
        for segment in prompt.prefix:
            path += (segment.key,)
            tokens[path] = len(segment.token_ids)
    return sum(tokens.values())


class Arrival(msgspec.Struct, frozen=True):
    """A prompt and its arrival time, in seconds from the start."""

    at_s: float
    prompt: Prompt


def poisson(prompts: Iterator[Prompt], rate: float, count: int, seed: int) -> list[Arrival]:
    """Return the next ``count`` prompts with Poisson arrivals of ``rate`` per second.

    The pattern is the same at every rate, only faster or slower, so rates do not differ in their bursts.
    """
    draws = random.Random(f"arrivals {seed}")  # noqa: S311 - a repeatable draw
    at_s = 0.0
    arrivals = []
    for prompt in islice(prompts, count):
        at_s += draws.expovariate(rate)
        arrivals.append(Arrival(at_s, prompt))
    return arrivals
