"""The retrieval benchmark times staged searches against plain Faiss searches. Their results are equal."""

import numpy as np
import pytest
from varied import varied

from ragtree_lab.retrieval import RetrievalBenchmark
from ragtree_lab.workloads.synthetic_vectors import SyntheticVectors
from retriever.settings import IndexSettings

SETTINGS = varied(IndexSettings, links=4, build_beam=40, hnsw={"beam": 48})


@pytest.fixture(scope="module")
def reported():
    return {}


@pytest.fixture(scope="module")
def result(reported):
    data = SyntheticVectors(4000, 16, seed=0)
    questions = np.stack([data.question(number) for number in range(30)])
    benchmark = RetrievalBenchmark(
        data.documents(0, 4000),
        questions,
        5,
        64,
        SETTINGS,
        lambda step, done, total: reported.update({step: (done, total)}),
    )
    return benchmark.run([0.25, 1], [2, 4])


def test_every_row_equals_a_one_shot_search(result):
    assert [(row.search_ratio, row.stages) for row in result.rows] == [(0.25, 2), (0.25, 4), (1, 2), (1, 4)]
    assert result.unequal_results == 0
    for row in result.rows:
        assert row.staged_over_oneshot == row.staged_ms / row.oneshot_ms
        assert len(row.final_by_stage) == row.stages
        assert row.final_by_stage == sorted(row.final_by_stage)
        assert row.final_by_stage[-1] == 1


def test_second_graph_stage_finds_more(result):
    (row,) = result.hnsw
    narrow, full = row.recall_by_stage
    assert narrow <= full
    assert full > 0.8


def test_progress_reports_each_step(result, reported):
    assert reported == {"training lists": (1, 1), "searching lists": (2, 2), "linking the graph": (1, 1)}


def test_vectors_form_topics_and_questions_are_near_one():
    data = SyntheticVectors(9000, 384, seed=1)
    vectors, questions = data.documents(0, 9000), np.stack([data.question(number) for number in range(50)])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(questions, axis=1), 1, atol=1e-5)
    cosines = np.sort(questions @ vectors.T, axis=1)
    assert 0.55 < cosines[:, -1].mean() < 0.65
    assert 0.07 < cosines.std() < 0.11


def test_vectors_do_not_depend_on_the_requested_range():
    data, again = (SyntheticVectors(9000, 64, seed=1) for _ in range(2))
    assert (data.documents(4000, 3000) == again.documents(0, 9000)[4000:7000]).all()
    assert (data.question(7) == again.question(7)).all()
    assert not (data.question(7) == SyntheticVectors(9000, 64, seed=2).question(7)).any()
