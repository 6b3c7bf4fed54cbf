"""Searches in stages are measured against Faiss's own, and found equal to them."""

import numpy as np
import pytest

from benchmarks.retrieval import RetrievalBenchmark
from benchmarks.vectors import ClusteredVectors
from retriever.settings import HNSWSettings, IndexSettings

SETTINGS = IndexSettings(hnsw=HNSWSettings(links=4, build_beam=40, beam=48))


@pytest.fixture(scope="module")
def heard():
    return {}


@pytest.fixture(scope="module")
def result(heard):
    data = ClusteredVectors(4000, 16, queries=30, seed=0)
    benchmark = RetrievalBenchmark(data, 5, 64, SETTINGS, lambda step, done, total: heard.update({step: (done, total)}))
    return benchmark.run([25, 100], [2, 4])


def test_every_row_is_equal_to_one_shot(result):
    assert [(row.search_ratio, row.stages) for row in result.rows] == [(25, 2), (25, 4), (100, 2), (100, 4)]
    assert result.unequal_results == 0
    for row in result.rows:
        assert row.staged_over_oneshot == row.staged_ms / row.oneshot_ms
        assert len(row.final_by_stage) == row.stages
        assert row.final_by_stage == sorted(row.final_by_stage)
        assert row.final_by_stage[-1] == 1


def test_the_graph_finds_more_in_its_second_stage(result):
    (row,) = result.hnsw
    narrow, full = row.recall_by_stage
    assert narrow <= full
    assert full > 0.8


def test_progress_hears_each_step(result, heard):
    assert heard == {"training lists": (1, 1), "searching lists": (2, 2), "linking the graph": (1, 1)}


def test_vectors_come_in_topics_and_queries_stand_near_some():
    data = ClusteredVectors(2000, 64, queries=50, seed=1)
    np.testing.assert_allclose(np.linalg.norm(data.vectors, axis=1), 1, atol=1e-5)
    near = np.sort(data.queries @ data.vectors.T, axis=1)
    assert near[:, -1].mean() > 0.65
    assert near[:, 0].mean() < 0
    again = ClusteredVectors(2000, 64, queries=50, seed=1)
    assert (again.vectors == data.vectors).all()
    assert (again.queries == data.queries).all()
