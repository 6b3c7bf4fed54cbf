"""Streams of prompts to replay. Every system gets the same prompts in the same order."""

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Protocol

import msgspec

from protocol.errors import ConfigError
from protocol.prompts import Prompt
from ragtree_lab.workloads.popularity import PAPER_REQUESTS_SHARE, PAPER_TOP_SHARE, Skew, request_counts
from ragtree_lab.workloads.retrieved_prompts import AskedQuestion, RetrievedPrompts, document_tokens


class Arrival(msgspec.Struct, frozen=True):
    """A prompt and its arrival time, in seconds from the start."""

    at_s: float
    prompt: Prompt


class PromptStream(Protocol):
    """Prompts in a fixed order."""

    document_tokens: int
    """The KV tokens of the documents of all the stream's prompts. Equal prefixes count once."""

    @property
    def left(self) -> int | None:
        """The number of prompts that were not taken yet; None if the stream has no end."""

    def take(self, count: int) -> list[Prompt]:
        """Return the next ``count`` prompts. Raises ConfigError if the stream ends before."""

    def arrivals(self, rate: float, count: int) -> list[Arrival]:
        """Return the next ``count`` prompts, arriving at a mean rate per second. Raises ConfigError as ``take``."""


class QuestionStream:
    """A ``PromptStream`` of questions that are asked once each, with Poisson arrivals."""

    def __init__(self, prompts: RetrievedPrompts, asked: Sequence[AskedQuestion], seed: int) -> None:
        self._prompts = prompts
        self._asked = iter(asked)
        self._count = self.left = len(asked)
        self._seed = seed
        paths = {one.documents[:depth] for one in asked for depth in range(1, len(one.documents) + 1)}
        self.document_tokens = sum(prompts.documents[path[-1]].tokens for path in paths)

    def take(self, count: int) -> list[Prompt]:
        """Lay out the next prompts. Raises ConfigError if there are fewer."""
        taken = [self._prompts.prompt(asked) for asked in islice(self._asked, count)]
        self.left -= len(taken)
        if len(taken) < count:
            raise ConfigError(f"the stream of {self._count} questions has ended: use a longer one", "stream")
        return taken

    def arrivals(self, rate: float, count: int) -> list[Arrival]:
        """Return the next prompts with Poisson arrivals."""
        return poisson(self.take(count), rate, self._seed)


class RepeatingStream:
    """A ``PromptStream`` without end, of whole prompts that repeat, with Poisson arrivals."""

    left = None

    def __init__(self, prompts: RetrievedPrompts, seed: int) -> None:
        self._drawn: Iterator[Prompt] = prompts.draw(seed)
        self._seed = seed
        self.document_tokens = document_tokens(prompts.all())

    def take(self, count: int) -> list[Prompt]:
        """Draw the next prompts."""
        return list(islice(self._drawn, count))

    def arrivals(self, rate: float, count: int) -> list[Arrival]:
        """Return the next prompts with Poisson arrivals."""
        return poisson(self.take(count), rate, self._seed)


def popular_documents(prompts: RetrievedPrompts, count: int | None, seed: int) -> list[AskedQuestion]:
    """Return ``count`` questions, each once, of which the top 3 % of all documents get 60 % (RAGCache, Figure 5).

    A question belongs to its best document. The most popular documents are those with the most questions. With None,
    there are as many questions as this skew allows. Raises ConfigError if there are too few questions.
    """
    draws = random.Random(f"documents {seed}")  # noqa: S311 - a repeatable draw
    ranked = sorted(prompts.by_first.values(), key=len, reverse=True)
    questions = [len(those) for those in ranked]
    skew = Skew(len(prompts.documents), PAPER_TOP_SHARE, PAPER_REQUESTS_SHARE)
    counts = request_counts(questions, skew.most_requests(questions) if count is None else count, skew, draws)
    asked = [one for those, number in zip(ranked, counts, strict=True) for one in draws.sample(those, number)]
    draws.shuffle(asked)
    return asked


def own_questions(prompts: RetrievedPrompts, count: int | None, seed: int) -> list[AskedQuestion]:
    """Return ``count`` questions, each once, that the set's documents get as often as in the set; with None, all.

    Raises ConfigError if there are fewer.
    """
    every = [one for those in prompts.by_first.values() for one in those]
    count = len(every) if count is None else count
    if len(every) < count:
        raise ConfigError(f"there are {len(every)} questions, not {count}: retrieve for more of them", "questions")
    return random.Random(f"own {seed}").sample(every, count)  # noqa: S311 - a repeatable draw


def poisson(prompts: Sequence[Prompt], rate: float, seed: int) -> list[Arrival]:
    """Return the prompts with Poisson arrivals, at the times of ``arrival_times``."""
    times_s = arrival_times(len(prompts), rate, seed)
    return [Arrival(at_s, prompt) for at_s, prompt in zip(times_s, prompts, strict=True)]


def arrival_times(count: int, rate: float, seed: int) -> list[float]:
    """Return the seconds of ``count`` Poisson arrivals, the last of them when ``rate`` per second makes it due.

    For equal counts, the pattern is the same at every rate, only faster or slower: rates do not differ in their bursts.
    """
    draws = random.Random(f"arrivals {seed}")  # noqa: S311 - a repeatable draw
    times = list(accumulate(draws.expovariate(1.0) for _ in range(count)))
    return [at / times[-1] * count / rate for at in times]
