"""Personalised PageRank by power iteration."""

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, diags

Weights = npt.NDArray[np.float32]
"""One number a node, [n]."""

_MOST_ITERATIONS = 30
_TOLERANCE = 1e-4


def transition(edges: csr_matrix) -> csr_matrix:
    """Return the matrix that moves a walker along ``edges``, [n, n], symmetric, in proportion to their weights."""
    degree = np.asarray(edges.sum(axis=0)).ravel()
    return (edges @ diags(1 / np.where(degree > 0, degree, 1))).astype(np.float32).tocsr()


def personalised_pagerank(moves: csr_matrix, restart: Weights, restart_probability: float) -> Weights:
    """Return how often a walker visits each node if it often goes back to the ``restart`` nodes, in their proportion.

    This is the restart form of PageRank (Haveliwala 2002, "Topic-sensitive PageRank"), as HippoRAG uses it. A walker
    without an edge to leave by is lost, so the result sums to 1 at most. All zeros if ``restart`` is.
    """
    total = float(restart.sum())
    if total <= 0:
        return np.zeros_like(restart)
    restart = (restart / total).astype(np.float32)
    visits = restart
    for _ in range(_MOST_ITERATIONS):
        moved = restart_probability * restart + (1 - restart_probability) * (moves @ visits)
        change = float(np.abs(moved - visits).sum())
        visits = moved
        if change < _TOLERANCE:
            break
    return visits
