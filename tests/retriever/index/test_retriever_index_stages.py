"""The last stage of a search equals a search in one stage, bit by bit."""

import itertools
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits
from varied import varied

from retriever.index.faiss_index import StagePlanner, equal_slices
from retriever.index.flat import FlatIndex
from retriever.index.ivf import IVFIndex
from retriever.index.mapped_ivf import MappedIVFIndex, write_lists
from retriever.settings import IndexSettings, IndexTuning

DIMENSION = 8


@pytest.fixture(autouse=True)
def one_core():
    """Threads slow down searches of such small indexes, especially on a busy machine."""
    with threadpool_limits(limits=1, user_api="openmp"):
        yield


def ticking():
    """A clock on which every stage takes a second, so that searches have the most stages."""
    return itertools.count().__next__


def flat(ids, vectors, chosen):
    index = FlatIndex(DIMENSION, chosen, ticking())
    index.add(ids, vectors)
    return index


def ivf(ids, vectors, chosen):
    return IVFIndex.train(ids, vectors, chosen, ticking())


def mapped(ids, vectors, chosen):
    """Half of the vectors are in the file, the rest are added."""
    half = (len(ids) + 1) // 2
    with tempfile.TemporaryDirectory() as folder:
        parts = [(ids[:half], vectors[:half])]
        trained = write_lists(Path(folder), vectors, parts, len(ids), 40, chosen)
        index = MappedIVFIndex.open(Path(folder), trained, chosen, ticking())
    if half < len(ids):
        index.add(ids[half:], vectors[half:])
    return index


def vectors_of(draws, count, kinds):
    """``count`` vectors with ``kinds`` distinct values."""
    rows = draws.normal(size=(kinds, DIMENSION)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True))[draws.integers(0, kinds, count)]


def assert_equal(left, right):
    assert left.ids.tolist() == right.ids.tolist()
    assert left.scores.tobytes() == right.scores.tobytes()


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    make=st.sampled_from([flat, ivf, mapped]),
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 300),
    kinds=st.integers(1, 300),
    k=st.integers(1, 40),
    stages=st.integers(2, 12),
    lists=st.none() | st.integers(1, 60),
    probe_share=st.floats(0.01, 1.0),
    removed=st.integers(0, 100),
    allowed=st.none() | st.integers(0, 300),
)
def test_last_stage_equals_a_search_in_one_stage(
    make, seed, count, kinds, k, stages, lists, probe_share, removed, allowed
):
    draws = np.random.default_rng(seed)
    vectors = vectors_of(draws, count + 20, kinds)
    ids = draws.permutation(np.arange(count + 20) * 3)
    fields = {"probe_share": probe_share, "min_probes": 1, "lists": lists}
    indexes = []
    for most in (1, stages):
        index = make(ids[:count], vectors[:count], varied(IndexSettings, stages=most, **fields))
        index.add(ids[count:], vectors[count:])
        index.remove(ids[:removed])
        indexes.append(index)
    among = None if allowed is None else np.sort(draws.choice(ids, min(allowed, len(ids)), replace=False))
    for query in vectors_of(draws, 3, 3):
        whole, staged = (list(index.search(query, k, among)) for index in indexes)
        assert len(whole) == 1
        assert [(hits.stage, hits.of) for hits in staged] == [(n + 1, len(staged)) for n in range(len(staged))]
        assert_equal(staged[-1], whole[0])
        order = np.lexsort((whole[0].ids, -whole[0].scores))
        assert order.tolist() == list(range(len(order)))
        for earlier, later in itertools.pairwise(staged):
            best = slice(len(earlier.ids))
            assert (later.scores[best] >= earlier.scores).all()


@pytest.mark.parametrize("make", [flat, ivf, mapped])
def test_equal_scores_are_ordered_by_id(make):
    """There are more ties than a stage first requests, and the lowest ids are added last."""
    ids = np.arange(3000, 0, -1)
    index = make(ids, np.tile(np.eye(1, DIMENSION, dtype=np.float32), (3000, 1)), varied(IndexSettings, stages=7))
    for _ in range(3):
        *_, hits = index.search(np.eye(1, DIMENSION, dtype=np.float32)[0], 5)
        assert hits.ids.tolist() == [1, 2, 3, 4, 5]


CHANGES = {
    "grown": lambda index, more: index.add(np.arange(10_000, 10_400), more),
    "shrunk": lambda index, more: index.remove(np.arange(0, 1000, 2)),
    "emptied": lambda index, more: index.remove(np.arange(1000)),
}


@pytest.mark.parametrize("make", [flat, ivf, mapped])
@pytest.mark.parametrize("change", CHANGES)
def test_change_between_stages_does_not_block_and_is_in_the_last_stage(make, change):
    draws = np.random.default_rng(5)
    vectors = vectors_of(draws, 1400, 1400)
    index = make(np.arange(1000), vectors[:1000], varied(IndexSettings, stages=4, probe_share=1.0))
    list(index.search(vectors[0], 10))
    for first in (1, 2, 3):
        stages = index.search(vectors[0], 10)
        for _ in range(first):
            assert next(stages).of == 4
        writer = threading.Thread(target=CHANGES[change], args=(index, vectors[1000:]))
        writer.start()
        writer.join(20)
        assert not writer.is_alive()
        *_, last = stages
        *_, after = index.search(vectors[0], 10)
        assert_equal(last, after)
        index = make(np.arange(1000), vectors[:1000], varied(IndexSettings, stages=4, probe_share=1.0))
        list(index.search(vectors[0], 10))


def test_slices_are_about_equal():
    assert equal_slices(7, 2) == ((0, 3), (3, 7))
    assert equal_slices(2, 9) == ((0, 1), (1, 2))
    assert equal_slices(1, 1) == ((0, 1),)
    assert equal_slices(0, 3) == ((0, 0),)


def test_planner_cuts_a_search_by_its_expected_time():
    planner = StagePlanner(IndexTuning(stages=6, stage_ms=10))
    assert planner.stages(10**9) == 1
    planner.learn(1000, 0.1)
    assert [planner.stages(units) for units in (0, 10, 199, 200, 350, 10_000)] == [1, 1, 1, 2, 3, 6]
    for _ in range(50):
        planner.learn(1000, 0.2)
    assert planner.stages(210) == 4
    planner.learn(0, 5)
    assert planner.stages(210) == 4
