"""Workloads: the streams of requests that a cache simulator is fed with, and the one place that opens them by name."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from protocol.errors import ConfigError
from retriever.settings import RetrieverSettings

PAPER_MEAN_TOKENS = 3718.0
"""The mean length of a document in the corpus that RAGCache measures with, Wikipedia."""
TRACES = {"ragpulse": "trace_ragpulse", "mooncake": "trace_mooncake_synthetic"}
"""Traces that have a name, and their folders below the data folder."""


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


def silent(step: str, done: int, total: int) -> None:
    """Show no progress."""


def open_workload(
    name_or_path: str,
    data: Path,
    seed: int,
    *,
    requests: int | None = None,
    rate: float | None = None,
    top_k: int | None = None,
    mean_tokens: float | None = PAPER_MEAN_TOKENS,
    documents: int = 10_000,
    alpha: float = 1.0,
    retriever: RetrieverSettings | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[str, int, int], None] = silent,
) -> Workload:
    """The workload of this name, or of the trace at this path; a name goes first, so write ``./zipf`` for the file.

    Names: ``ragpulse`` and ``mooncake`` below ``data``; ``zipf``, ``temporal`` and ``uniform``, generated over
    ``documents`` documents with skew ``alpha``; and question sets below ``data`` (see
    `benchmarks.workloads.question_sets`),
    whose documents a retriever with the settings ``retriever`` finds, its files kept below ``cache_dir``. The first
    opening of a question set takes minutes, of which ``progress`` hears (step, done, total); it must not happen inside
    a running event loop.

    ``requests``, ``rate`` (a second) and ``top_k`` cut and rescale a trace, and size all others, whose defaults are
    100,000 generated requests or each question once, 1 a second, and 5. Lengths of documents that are not a trace's are
    drawn with mean ``mean_tokens``, or with None are those of the question set's texts.

    Raises ConfigError for what does not exist or cannot be, and for a question set what its retriever raises.
    """
    # Generators and question sets pull in numpy and the retriever, and import what stands above.
    from benchmarks.workloads.question_sets import QuestionSet, open_question_set
    from benchmarks.workloads.synthetic import PATTERNS, SyntheticSettings, SyntheticWorkload
    from benchmarks.workloads.traces import open_trace

    if name_or_path in PATTERNS:
        settings = SyntheticSettings(
            requests=100_000 if requests is None else requests,
            documents=documents,
            top_k=5 if top_k is None else top_k,
            rate=1.0 if rate is None else rate,
            mean_tokens=PAPER_MEAN_TOKENS if mean_tokens is None else mean_tokens,
            alpha=alpha,
        )
        return SyntheticWorkload(name_or_path, settings, seed)
    if QuestionSet.exists(data, name_or_path):
        if cache_dir is None:
            raise ConfigError("a question set needs a cache folder for what is retrieved", param="cache_dir")
        return open_question_set(
            QuestionSet(data, name_or_path),
            retriever or RetrieverSettings(),
            cache_dir,
            seed,
            count=requests,
            top_k=5 if top_k is None else top_k,
            rate=1.0 if rate is None else rate,
            mean_tokens=mean_tokens,
            progress=progress,
        )
    path = data / TRACES[name_or_path] if name_or_path in TRACES else Path(name_or_path)
    if not path.exists():
        known = [*TRACES, *PATTERNS, *QuestionSet.names(data)]
        raise ConfigError(
            f"there is no workload {name_or_path!r}: {path} is no file, and the names are {', '.join(known)}",
            param="workload",
        )
    workload = open_trace(path, name_or_path if name_or_path in TRACES else path.name)
    # The rate comes last, as it is to be that of the requests that are left.
    workload = workload if top_k is None else workload.top_k(top_k)
    workload = workload if requests is None else workload.limit(requests)
    return workload if rate is None else workload.at_rate(rate)
