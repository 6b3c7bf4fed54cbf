"""Made-up embeddings: what a search reads, without a model that has to make it."""

import numpy as np

from retriever.embedding.base import Vector, unit_rows

_CLUSTER = 100
_SPREAD = 1.0
_DISTANCE = 0.7


class ClusteredVectors:
    """Unit vectors of a Gaussian mixture, and queries near some of them, all drawn with ``seed``.

    It stands for passages on many topics, about 100 on each: passages of one topic are nearer to each other (a cosine
    of about 0.5) than to any other, and topics are of unequal sizes, so a search finds its neighbours in few lists and
    lists are uneven. Uniform noise has neither, and no index can search it in parts.
    """

    def __init__(self, count: int, dimension: int, queries: int, seed: int) -> None:
        draws = np.random.default_rng(seed)
        topics = max(1, count // _CLUSTER)
        centres = draws.standard_normal((topics, dimension), np.float32)
        of_topic = draws.choice(topics, count, p=draws.dirichlet(np.ones(topics)))
        self.vectors: Vector = unit_rows(
            centres[of_topic] + _SPREAD * draws.standard_normal((count, dimension), np.float32)
        )
        near = self.vectors[draws.integers(0, count, queries)]
        noise = unit_rows(draws.standard_normal((queries, dimension), np.float32))
        self.queries: Vector = unit_rows(near + _DISTANCE * noise)
