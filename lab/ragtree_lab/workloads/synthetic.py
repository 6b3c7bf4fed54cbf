"""Generated workloads: the three access patterns of DepCache, section 6.1, over documents that are found together.

A request's first document is drawn by the pattern. The others are that document's neighbours. They are the same, in the
same order, except in a small share of requests. So prefixes repeat, as they do when questions are asked again.
"""

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protocol.errors import ConfigError
from ragtree_lab.workloads.workload import PAPER_MEAN_TOKENS, TraceDocument, TraceRequest, Workload, check_rate

BLOCK = 4096
"""Requests drawn together."""
SPREAD = 0.8
"""Standard deviation of the logarithm of a document's length: one in twenty is longer than 2.7 times the mean."""

Numbers = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


class SyntheticSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a generated workload. Raises ConfigError for invalid values.

    ``rate`` is in requests per second; tokens are means. ``alpha`` is the exponent of Zipf's law for ``zipf`` and
    ``temporal``. ``drift`` is the number of new most popular documents per request of ``temporal``.
    ``other_neighbours`` is the share of requests with unusual neighbours.
    """

    requests: int = 100_000
    documents: int = 10_000
    top_k: int = 5
    rate: float = 1.0
    mean_tokens: float = PAPER_MEAN_TOKENS
    question_tokens: float = 32.0
    alpha: float = 1.0
    drift: float = 0.01
    other_neighbours: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("top_k", 1), ("question_tokens", 1), ("alpha", 0), ("drift", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least {least}, and is {getattr(self, name)}", param=name)
        if self.documents < self.top_k:
            raise ConfigError(f"{self.documents} documents are fewer than top_k, {self.top_k}", param="documents")
        if not 0 <= self.other_neighbours <= 1:
            raise ConfigError("other_neighbours is a share, from 0 to 1", param="other_neighbours")
        check_rate(self.rate)
        DocumentLengths(self.mean_tokens, seed=0)  # checks the mean


class DocumentLengths:
    """Document lengths in tokens: lognormal, fixed by the seed and the document's id.

    They are cut off three standard deviations from the median, at about 1/15 and 8 times the mean, which lowers the
    mean by 0.3 %. Raises ConfigError for a mean below 1.
    """

    def __init__(self, mean_tokens: float, seed: int) -> None:
        if not 1 <= mean_tokens < math.inf:
            raise ConfigError(f"the mean length must be at least 1 token, and is {mean_tokens}", param="mean_tokens")
        self._of_logarithm = NormalDist(math.log(mean_tokens) - SPREAD**2 / 2, SPREAD)
        self._longest = self._of_logarithm.mean + 3 * SPREAD
        self._shortest = self._of_logarithm.mean - 3 * SPREAD
        self._seed = seed

    def of(self, document_id: str) -> int:
        """Return the length of a document."""
        digest = blake3(f"{self._seed} {document_id}".encode("utf-8", "surrogatepass")).digest(8)
        # 52 bits plus one half: never 0, and never rounded to 1.
        share = ((int.from_bytes(digest) >> 12) + 0.5) / 2**52
        logarithm = self._of_logarithm.inv_cdf(share)
        return max(1, round(math.exp(min(max(logarithm, self._shortest), self._longest))))


class SyntheticWorkload(Workload):
    """Requests of one of the ``PATTERNS`` with Poisson arrivals. Equal settings and seeds give equal requests.

    A shorter workload is the start of a longer one. Memory grows with the number of documents, not of requests.
    """

    def __init__(self, pattern: str, settings: SyntheticSettings, seed: int) -> None:
        self.name = pattern
        self._settings = settings
        self._seed = seed
        random = np.random.default_rng([seed, 0])
        # Ids are independent of popularity, so that ordering by id favours no document.
        self._first = PATTERNS[pattern](settings, random.permutation(settings.documents))
        self._neighbours = _neighbours(settings, random)
        lengths = DocumentLengths(settings.mean_tokens, seed)
        ids = (f"{pattern}-{number:07d}" for number in range(settings.documents))
        self._documents = [TraceDocument(id_, lengths.of(id_)) for id_ in ids]

    @property
    def length(self) -> int:
        """The configured number of requests."""
        return self._settings.requests

    def requests(self) -> Iterator[TraceRequest]:
        """Iterate over the requests, drawn block by block."""
        random = np.random.default_rng([self._seed, 1])
        documents = self._documents
        last_s = 0.0
        for start in range(0, self._settings.requests, BLOCK):
            # Blocks are always drawn whole, so that a request does not depend on the workload's length.
            arrivals = last_s + np.cumsum(random.exponential(1 / self._settings.rate, BLOCK))
            numbers = self._draw(start, random)
            questions = np.maximum(1, random.poisson(self._settings.question_tokens, BLOCK))
            last_s = float(arrivals[-1])
            left = self._settings.requests - start
            rows = zip(arrivals[:left].tolist(), numbers.tolist(), questions.tolist(), strict=False)
            for arrival_s, chosen, question_tokens in rows:
                yield TraceRequest(arrival_s, tuple([documents[number] for number in chosen]), question_tokens)

    def _draw(self, start: int, random: np.random.Generator) -> Numbers:
        """Return the documents of a block of requests, [BLOCK, top_k]."""
        first = self._first(start, random.random(BLOCK))
        listed = self._neighbours.shape[1]
        others = random.random(BLOCK) < self._settings.other_neighbours
        turns = np.where(others, random.integers(1, max(2, listed), BLOCK), 0)
        if not listed:
            return first[:, None]
        # Unusual neighbours are another stretch of the same list.
        places = (turns[:, None] + np.arange(self._settings.top_k - 1)) % listed
        return np.concatenate([first[:, None], self._neighbours[first[:, None], places]], axis=1)


def zipf(settings: SyntheticSettings, by_rank: Numbers) -> Callable[[int, Shares], Numbers]:
    """Popularity by Zipf's law: rank r has a weight of r to the power of -alpha."""
    ranks = _zipf_ranks(settings)
    return lambda start, draws: by_rank[ranks(draws)]  # noqa: ARG005


def temporal(settings: SyntheticSettings, by_rank: Numbers) -> Callable[[int, Shares], Numbers]:
    """Popularity by Zipf's law with drifting ranks: a new document becomes the first, and all others move down.

    The last document in rank is the next new one, so popularity rotates through the documents.
    """
    ranks = _zipf_ranks(settings)

    def first(start: int, draws: Shares) -> Numbers:
        newest = np.floor((start + np.arange(len(draws))) * settings.drift).astype(np.int64)
        places: Numbers = (ranks(draws) - newest) % settings.documents
        return by_rank[places]

    return first


def uniform(settings: SyntheticSettings, by_rank: Numbers) -> Callable[[int, Shares], Numbers]:
    """Uniform popularity: every document is drawn equally often."""
    return lambda start, draws: by_rank[(draws * settings.documents).astype(np.int64)]  # noqa: ARG005


PATTERNS: dict[str, Callable[[SyntheticSettings, Numbers], Callable[[int, Shares], Numbers]]] = {
    "zipf": zipf,
    "temporal": temporal,
    "uniform": uniform,
}
"""The access patterns. Each takes the settings and the documents by rank, and returns a function that draws.

The function takes the index of a block's first request and a share in [0, 1) for each request of the block.
"""


def _zipf_ranks(settings: SyntheticSettings) -> Callable[[Shares], Numbers]:
    """Return a function from shares in [0, 1) to ranks from 0."""
    weights = np.cumsum(np.arange(1, settings.documents + 1, dtype=np.float64) ** -settings.alpha)
    weights /= weights[-1]
    return lambda draws: np.searchsorted(weights, draws, side="right").astype(np.int64)


def _neighbours(settings: SyntheticSettings, random: np.random.Generator) -> Numbers:
    """Return each document's list of distinct neighbours, [documents, up to four times the number used per request]."""
    count = settings.documents
    listed = min(count - 1, 4 * (settings.top_k - 1))
    if not listed:
        return np.zeros((count, 0), np.int64)
    # One from each of equal arcs of the circle that starts behind the document, which makes them distinct.
    edges = 1 + np.arange(listed + 1) * (count - 1) // listed
    steps = random.integers(edges[:-1], edges[1:], (count, listed))
    return random.permuted((np.arange(count)[:, None] + steps) % count, axis=1)
