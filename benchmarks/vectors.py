"""Made-up embeddings: what a search reads, without a model that has to make it."""

import numpy as np

from retriever.embedding.base import Vector, unit_rows

_CLUSTER = 100
_SPREAD = 2.0
_DISTANCE = 1.0


class ClusteredVectors:
    """Unit vectors of a Gaussian mixture, and queries near some of them, all drawn with ``seed``.

    It stands for passages on many topics, about 100 on each and unequally many: passages of one topic are somewhat
    nearer to each other (a cosine of about 0.2) than to others (0), and a question is near the passage that answers it
    (0.7). So most neighbours of a query lie in few lists, and some in many. Uniform noise has no neighbourhoods, and no
    index can search it in parts.
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
