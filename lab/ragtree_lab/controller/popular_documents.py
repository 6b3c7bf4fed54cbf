"""A workload over so many documents that none of them is held in memory."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import msgspec

from protocol.errors import ConfigError
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload, check_rate

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE = "tenant"

_OTHER_NEIGHBOURS = 0.05
_STRIDES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Odd numbers without a pattern. They lead from a document to its neighbours."""


class Documents(msgspec.Struct, frozen=True):
    """``count`` documents of ``tokens`` tokens, ``top_k`` of them in a prompt, behind a system prompt.

    The popularity of a prompt's first document follows Zipf's law with the exponent ``alpha``. With 0.88, the top 3 %
    of 10 million documents get 60 % of the requests, as in RAGCache's Figure 5. Raises ConfigError for values that
    cannot be.
    """

    count: int = 10_000_000
    tokens: int = 512
    top_k: int = 3
    alpha: float = 0.88
    system_tokens: int = 64
    question_tokens: int = 32

    def __post_init__(self) -> None:
        for name in ("tokens", "top_k", "system_tokens", "question_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, and is {getattr(self, name)}", param=name)
        if self.count < 2 * self.top_k:
            raise ConfigError(f"{self.count} documents are too few for {self.top_k} in a prompt", param="documents")
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha must be at least 0, and is {self.alpha}", param="alpha")

    def rank(self, share: float) -> int:
        """The document, from 0 for the most popular one, below which lies a ``share`` in [0, 1) of the requests.

        Zipf's law as an integral, with half a rank to each side of a document. So no table of all documents is needed.
        """
        power = 1 - self.alpha
        begin, end = _integral(0.5, power), _integral(self.count + 0.5, power)
        rank = math.floor(_inverse(begin + share * (end - begin), power) + 0.5)
        return min(max(rank, 1), self.count) - 1

    def neighbour(self, document: int, turn: int) -> int:
        """A document that is found together with another one; ``turn`` counts its neighbours from 0."""
        return (document * _STRIDES[0] + (turn + 1) * _STRIDES[1]) % self.count


class PopularRequests(Workload):
    """``requests`` about these documents, from ``begin_s`` on with Poisson arrivals at ``rate`` a second.

    The documents behind the first one are its neighbours, in all but 5 % of the requests the same ones. Equal seeds
    give equal requests.
    """

    name = "popular documents"

    def __init__(self, documents: Documents, requests: int, rate: float, seed: int, begin_s: float = 0.0) -> None:
        check_rate(rate)
        self._documents = documents
        self._requests = requests
        self._rate = rate
        self._seed = seed
        self._begin_s = begin_s

    @property
    def length(self) -> int:
        """The number of requests."""
        return self._requests

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests."""
        asked = self._documents
        draws = Random(self._seed)  # noqa: S311 - a repeatable draw
        arrival_s = self._begin_s
        for _ in range(self._requests):
            arrival_s += draws.expovariate(self._rate)
            yield TraceRequest(
                arrival_s,
                tuple([TraceDocument(content(number), asked.tokens) for number in self._path(draws)]),
                asked.question_tokens,
                system_tokens=asked.system_tokens,
                system_id=NAMESPACE,
            )

    def _path(self, draws: Random) -> list[int]:
        asked = self._documents
        path = [asked.rank(draws.random())]
        turn = draws.randrange(1, asked.count) if draws.random() < _OTHER_NEIGHBOURS else 0
        while len(path) < asked.top_k:
            neighbour = asked.neighbour(path[0], turn)
            turn += 1
            # With few documents, neighbours may meet.
            if neighbour not in path:
                path.append(neighbour)
        return path


def content(number: int) -> str:
    """A document's content hash: as long as a real one."""
    return f"{number:064x}"


def _integral(rank: float, power: float) -> float:
    return math.log(rank) if power == 0 else rank**power / power


def _inverse(integral: float, power: float) -> float:
    return math.exp(integral) if power == 0 else (integral * power) ** (1 / power)
