"""The graph index: beam search in one or two stages, without removed vectors."""

import itertools

import faiss
import numpy as np
import pytest
from varied import varied

from retriever.index.hnsw import HNSWIndex
from retriever.settings import IndexSettings

GRAPH = {"links": 8, "build_beam": 60, "hnsw": {"beam": 32}}
COUNT = 3000


def unit(count, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, 12)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


VECTORS = unit(COUNT)
IDS = np.arange(COUNT, dtype=np.int64) * 2 + 1
QUERIES = unit(60, seed=1)


@pytest.fixture
def index():
    """An index that uses two stages from its second search on."""
    index = HNSWIndex.build(IDS, VECTORS, varied(IndexSettings, **GRAPH), itertools.count().__next__)
    list(index.search(VECTORS[0], 1))
    return index


def share_found(found, query, k=10, among=slice(None)):
    nearest = IDS[among][np.argsort(-(VECTORS[among] @ query))[:k]]
    return len(np.intersect1d(found.ids, nearest)) / k


def test_second_stage_equals_a_search_in_one_stage(index):
    restored = faiss.deserialize_index(np.frombuffer(index.dump(), np.uint8))
    single = HNSWIndex(restored, index.trained, varied(IndexSettings, **GRAPH, stages=1))
    narrow_found, found = [], []
    for query in QUERIES:
        narrow, full = index.search(query, 10)
        (whole,) = single.search(query, 10)
        assert (narrow.stage, narrow.of, full.stage, full.of) == (1, 2, 2, 2)
        assert full.ids.tolist() == whole.ids.tolist()
        assert full.scores.tobytes() == whole.scores.tobytes()
        assert (np.diff(full.scores) <= 0).all()
        narrow_found.append(share_found(narrow, query))
        found.append(share_found(full, query))
    assert np.mean(found) > 0.9
    assert 0.5 < np.mean(narrow_found) < np.mean(found)


def test_every_stage_skips_removed_vectors(index):
    index.remove(np.append(IDS[::2], 0))
    assert index.size == COUNT // 2
    assert index.ids().tolist() == IDS[1::2].tolist()
    rest = slice(1, None, 2)
    found = []
    for query in QUERIES:
        for hits in index.search(query, 10):
            assert np.isin(hits.ids, IDS[rest]).all()
        found.append(share_found(hits, query, among=rest))
    assert np.mean(found) > 0.9


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_filter_applies_and_few_vectors_are_searched_exactly(index, count):
    index.remove(IDS[:10])
    among = slice(5, 5 + count)
    left = IDS[among][IDS[among] > IDS[9]]
    found = []
    for query in QUERIES:
        *_, hits = index.search(query, 10, IDS[among])
        assert np.isin(hits.ids, left).all()
        if count <= 40:
            assert hits.ids.tolist() == left[np.argsort(-(VECTORS[10 : 5 + count] @ query))[:10]].tolist()
        found.append(share_found(hits, query, among=slice(10, 5 + count)))
    assert count == 1 or np.mean(found) > 0.9


def test_change_between_stages_does_not_block(index):
    stages = index.search(VECTORS[0], 5)
    first = next(stages)
    index.remove(first.ids[:1])
    index.add(np.array([100_000]), VECTORS[:1])
    (last,) = stages
    assert last.ids[0] == 100_000
    assert first.ids[0] not in last.ids
