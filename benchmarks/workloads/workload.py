"""Workloads: streams of requests for the cache simulator, and views that cut, rescale or reorder them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from protocol.errors import ConfigError

PAPER_MEAN_TOKENS = 3718.0
"""The mean length of a document in the corpus that RAGCache measures with, Wikipedia."""


class TraceDocument(NamedTuple):
    """A document as a cache sees it: equal ids are equal texts, of ``tokens`` tokens, at least one."""

    id: str
    tokens: int


class TraceRequest(NamedTuple):
    """A request: its arrival in seconds, and in tokens what its prompt is made of, in the prompt's order.

    System prompt, documents, question: those of equal ``system_id`` begin with the same system prompt.
    """

    arrival_s: float
    documents: tuple[TraceDocument, ...]
    question_tokens: int
    output_tokens: int = 0
    system_tokens: int = 0
    system_id: str = ""


class Workload(ABC):
    """A stream of requests in the order of their arrival that can be read any number of times, and is never a list."""

    name: str

    @property
    @abstractmethod
    def length(self) -> int | None:
        """How many requests there are; None where only reading all of them would tell."""

    @abstractmethod
    def requests(self) -> Iterator[TraceRequest]:
        """The requests from the first on, the same ones at each call. Raises ConfigError where a file is broken."""

    def top_k(self, k: int) -> "Workload":
        """The same requests with the first ``k`` documents of each only."""
        return FirstDocuments(self, k)

    def limit(self, count: int) -> "Workload":
        """The first ``count`` requests only."""
        return FirstRequests(self, count)

    def at_rate(self, requests_per_s: float) -> "Workload":
        """The same requests at another mean rate, with bursts and lulls in proportion."""
        return AtRate(self, requests_per_s)

    def in_canonical_order(self) -> "Workload":
        """The same requests with the documents of each ordered by id, so that equal sets share a prefix."""
        return CanonicalOrder(self)


class DerivedWorkload(Workload):
    """A workload made of another one's requests, under its name."""

    def __init__(self, source: Workload) -> None:
        self.name = source.name
        self._source = source

    @property
    def length(self) -> int | None:
        """As many as the source has."""
        return self._source.length


class FirstDocuments(DerivedWorkload):
    """A workload's requests with their first ``k`` documents. Raises ConfigError unless ``k`` is at least 1."""

    def __init__(self, source: Workload, k: int) -> None:
        super().__init__(source)
        if k < 1:
            raise ConfigError("top_k must be at least 1", param="top_k")
        self._k = k

    def requests(self) -> Iterator[TraceRequest]:
        """The source's requests, cut."""
        for request in self._source.requests():
            yield request._replace(documents=request.documents[: self._k])


class FirstRequests(DerivedWorkload):
    """A workload's first ``count`` requests. Raises ConfigError unless ``count`` is at least 1."""

    def __init__(self, source: Workload, count: int) -> None:
        super().__init__(source)
        if count < 1:
            raise ConfigError("the number of requests must be at least 1", param="requests")
        self._count = count

    @property
    def length(self) -> int | None:
        """The limit, or as many as the source has."""
        length = super().length
        return length if length is None else min(length, self._count)

    def requests(self) -> Iterator[TraceRequest]:
        """The source's requests up to the limit."""
        return islice(self._source.requests(), self._count)


class CanonicalOrder(DerivedWorkload):
    """A workload's requests with their documents ordered by id."""

    def requests(self) -> Iterator[TraceRequest]:
        """The source's requests, each reordered."""
        for request in self._source.requests():
            yield request._replace(documents=tuple(sorted(request.documents)))


class AtRate(DerivedWorkload):
    """A workload's requests with the times between them scaled to a mean rate; the first arrives at 0.

    The mean is over the gaps between arrivals. It takes a reading of the whole source before the first request. Raises
    ConfigError for a rate that is not positive, and when read if all requests arrive at once.
    """

    def __init__(self, source: Workload, requests_per_s: float) -> None:
        super().__init__(source)
        check_rate(requests_per_s)
        self._gap_s = 1 / requests_per_s
        self._scaling: tuple[float, float] | None = None

    def requests(self) -> Iterator[TraceRequest]:
        """The source's requests, each at its new time."""
        first_s, factor = self._scaling = self._scaling or self._measure()
        for request in self._source.requests():
            yield request._replace(arrival_s=(request.arrival_s - first_s) * factor)

    def _measure(self) -> tuple[float, float]:
        """The first arrival, and what a gap has to be multiplied by."""
        first_s = last_s = 0.0
        gaps = -1
        for request in self._source.requests():
            last_s = request.arrival_s
            gaps += 1
            if gaps == 0:
                first_s = last_s
        if gaps > 0 and last_s <= first_s:
            raise ConfigError(f"all requests of {self.name} arrive at once, which no rate can be made of", param="rate")
        return first_s, self._gap_s * gaps / (last_s - first_s) if gaps > 0 else 1.0


def check_rate(rate: float) -> None:
    """Raise ConfigError unless this is a rate at which requests can arrive."""
    if not 0 < rate < math.inf:
        raise ConfigError(f"the rate must be a positive number of requests a second, and is {rate}", param="rate")
