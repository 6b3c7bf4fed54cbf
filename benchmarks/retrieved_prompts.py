"""Real questions with the longer documents that real retrieval brings them, as prompts, drawn by popularity."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from benchmarks.articles import ArticlePart
from benchmarks.datasets import Question
from benchmarks.popularity import PAPER_REQUESTS_SHARE, PAPER_TOP_SHARE, Popularity, cumulated, zipf_weights
from benchmarks.question_sets import QuestionRetrieval, QuestionSet
from protocol.errors import ConfigError
from protocol.parts import PromptLayout
from protocol.prompts import ChatMessage, Prompt

_CHUNKS = 10
"""Chunks that are retrieved for a question: the first documents are those that the first of them stand in."""


class RetrievedPrompts:
    """Questions by the document that retrieval puts first, and prompts drawn of them.

    A document is an article's part; a question's are the first ``top_k`` that its chunks, best first, stand in.
    """

    def __init__(self, parts: Sequence[ArticlePart], layout: PromptLayout, top_k: int, max_tokens: int) -> None:
        self._parts = parts
        self._layout = layout
        self._top_k = top_k
        self._max_tokens = max_tokens
        self._part_of = {paragraph: part.number for part in parts for paragraph in part.paragraphs}
        self._by_first: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)

    def retrieve(self, questions: QuestionSet, retrieval: QuestionRetrieval, count: int, seed: int) -> None:
        """Search for ``count`` questions of the set, drawn with ``seed``, or all. Not inside a running event loop."""
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

    @property
    def documents(self) -> int:
        """Documents that retrieval puts first for some question."""
        return len(self._by_first)

    def draw(self, popularity: Popularity, seed: int) -> Iterator[Prompt]:
        """Prompts without end: by the paper's skew over documents in a random order, or the questions as they come."""
        draws = random.Random(f"{popularity} {seed}")  # noqa: S311 - a repeatable draw
        firsts = sorted(self._by_first)
        draws.shuffle(firsts)
        if popularity is Popularity.PAPER:
            sums = cumulated(zipf_weights(len(firsts), PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE))
        else:
            sums = cumulated([float(len(self._by_first[first])) for first in firsts])
        while True:
            (first,) = draws.choices(firsts, cum_weights=sums)
            question, documents = draws.choice(self._by_first[first])
            chunks = [self._parts[number].chunk for number in documents]
            yield self._layout.lay_out([ChatMessage("user", question)], chunks, self._max_tokens)

    def _documents(self, paragraphs: Sequence[str]) -> tuple[int, ...]:
        numbers = dict.fromkeys(self._part_of[paragraph] for paragraph in paragraphs if paragraph in self._part_of)
        return tuple(islice(numbers, self._top_k))


class Arrival(msgspec.Struct, frozen=True):
    """A prompt, and seconds from the beginning at which it comes."""

    at_s: float
    prompt: Prompt


def poisson(prompts: Iterator[Prompt], rate: float, count: int, seed: int) -> list[Arrival]:
    """The next ``count`` prompts, arriving at random with ``rate`` a second."""
    draws = random.Random(f"arrivals {rate} {seed}")  # noqa: S311 - a repeatable draw
    at_s = 0.0
    arrivals = []
    for prompt in islice(prompts, count):
        at_s += draws.expovariate(rate)
        arrivals.append(Arrival(at_s, prompt))
    return arrivals
