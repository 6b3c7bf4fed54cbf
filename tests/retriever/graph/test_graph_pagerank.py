"""Personalised PageRank against its definition."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from retriever.graph.knowledge_graph import personalised_pagerank, transition


def ring_with_a_spur() -> csr_matrix:
    edges = np.zeros((5, 5), np.float32)
    for one, other in [(0, 1), (1, 2), (2, 3), (3, 0), (0, 4)]:
        edges[one, other] = edges[other, one] = 1
    return csr_matrix(edges)


def test_it_solves_the_walk_with_restarts():
    moves = transition(ring_with_a_spur())
    restart = np.array([0, 1, 0, 0, 3], np.float32)
    visits = personalised_pagerank(moves, restart, 0.5)
    exact = np.linalg.solve(np.eye(5) - 0.5 * moves.toarray(), 0.5 * restart / restart.sum())
    assert visits == pytest.approx(exact, abs=1e-4)
    assert visits.sum() == pytest.approx(1, abs=1e-4)


def test_columns_of_the_transition_sum_to_one_unless_a_node_has_no_edge():
    edges = ring_with_a_spur().toarray()
    edges[4] = edges[:, 4] = 0
    sums = np.asarray(transition(csr_matrix(edges)).sum(axis=0)).ravel()
    assert sums == pytest.approx([1, 1, 1, 1, 0])


def test_a_walk_from_nowhere_visits_nothing():
    assert not personalised_pagerank(transition(ring_with_a_spur()), np.zeros(5, np.float32), 0.5).any()


def test_a_hub_with_many_edges_ends_in_time():
    spokes = 100_000
    ones, hub, others = np.ones(spokes, np.float32), np.zeros(spokes, np.int64), np.arange(1, spokes + 1)
    half = csr_matrix((ones, (hub, others)), (spokes + 1, spokes + 1))
    restart = np.zeros(spokes + 1, np.float32)
    restart[7] = 1
    visits = personalised_pagerank(transition((half + half.T).tocsr()), restart, 0.5)
    assert visits.argmax() == 7
    assert visits[0] > visits[8] > 0
