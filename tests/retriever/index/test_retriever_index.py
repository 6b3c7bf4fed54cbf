import tempfile
import threading
from pathlib import Path

import faiss
import numpy as np
import pytest
from retriever_cases import index_of, put_lines, running
from varied import varied

from protocol.errors import InvalidRequest
from retriever.index.base import Trained
from retriever.index.flat import FlatIndex
from retriever.index.hnsw import HNSWIndex
from retriever.index.index_files import IndexFiles, SavedIndex
from retriever.index.ivf import IVFIndex
from retriever.index.mapped_ivf import MappedIVFIndex, write_lists
from retriever.settings import IndexSettings

DIMENSION = 24
EXACT = IndexSettings(probe_share=1.0)


def unit(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, DIMENSION)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


VECTORS = unit(800)
IDS = np.arange(800, dtype=np.int64) * 3 + 5


def flat():
    index = FlatIndex(DIMENSION, EXACT)
    index.add(IDS, VECTORS)
    return index


def ivf(settings=EXACT):
    return IVFIndex.train(IDS, VECTORS, settings)


def hnsw(settings=EXACT):
    return HNSWIndex.build(IDS, VECTORS, settings)


def mapped(settings=EXACT):
    with tempfile.TemporaryDirectory() as folder:
        trained = write_lists(Path(folder), VECTORS, [(IDS[:300], VECTORS[:300])], 800, 100, settings)
        index = MappedIVFIndex.open(Path(folder), trained, settings)
    index.add(IDS[300:], VECTORS[300:])
    return index


@pytest.fixture(params=[flat, ivf, mapped, hnsw])
def index(request):
    return request.param()


def last(index, query, k, allowed=None):
    stages = list(index.search(query, k, allowed))
    assert [hits.stage for hits in stages] == list(range(1, stages[-1].of + 1))
    return stages[-1]


def truth(query, k, ids=IDS, vectors=VECTORS):
    return ids[np.argsort(-(vectors @ query), kind="stable")[:k]].tolist()


def test_search_returns_the_nearest_best_first(index):
    for query in unit(20, seed=1):
        hits = last(index, query, 10)
        assert hits.ids.tolist() == truth(query, 10)
        assert (np.diff(hits.scores) <= 0).all()
        np.testing.assert_allclose(hits.scores[0], (VECTORS @ query).max(), atol=1e-5)


def test_search_returns_all_vectors_if_k_exceeds_them(index):
    assert len(last(index, VECTORS[0], 10_000).ids) == 800


@pytest.mark.parametrize("count", [0, 1, 7, 400])
def test_search_returns_only_allowed_ids(index, count):
    allowed = np.sort(np.random.default_rng(2).choice(IDS, count, replace=False))
    chosen = np.isin(IDS, allowed)
    query = unit(1, seed=3)[0]
    assert last(index, query, 10, allowed).ids.tolist() == truth(query, 10, IDS[chosen], VECTORS[chosen])


def test_few_allowed_ids_are_searched_exactly():
    index = ivf(varied(IndexSettings, probe_share=0.01, min_probes=1))
    allowed = IDS[:12]
    for query in unit(20, seed=4):
        assert last(index, query, 5, allowed).ids.tolist() == truth(query, 5, allowed, VECTORS[:12])


def test_large_k_is_filled_with_few_lists():
    index = ivf(varied(IndexSettings, probe_share=0.01, min_probes=1))
    assert len(last(index, VECTORS[0], 300).ids) == 300


def test_added_vectors_are_found_and_removed_ones_are_not(index):
    index.add(np.array([1_000_000]), VECTORS[:1])
    assert set(last(index, VECTORS[0], 2).ids.tolist()) == {1_000_000, int(IDS[0])}
    index.remove(np.array([int(IDS[0]), 77_777], np.int64))
    assert last(index, VECTORS[0], 1).ids.tolist() == [1_000_000]
    assert index.size == 800
    assert index.ids().tolist() == [*IDS[1:].tolist(), 1_000_000]


@pytest.mark.parametrize("make", [ivf, hnsw])
def test_loaded_index_equals_the_dumped_one(make):
    index = make()
    loaded = type(index)(faiss.deserialize_index(np.frombuffer(index.dump(), np.uint8)), index.trained, EXACT)
    assert loaded.ids().tolist() == IDS.tolist()
    for query in unit(5, seed=5):
        assert last(loaded, query, 5).ids.tolist() == last(index, query, 5).ids.tolist()
    loaded.remove(IDS[:3])
    loaded.add(np.array([100_000]), VECTORS[:1])
    assert loaded.size == 798


BROKEN = {
    "a zero vector": np.zeros(DIMENSION, np.float32),
    "not finite": np.full(DIMENSION, np.nan, np.float32),
    "finite": np.array([np.inf] + [0] * (DIMENSION - 1), np.float32),
    "shape": np.ones(DIMENSION + 1, np.float32),
}


@pytest.mark.parametrize("message", BROKEN)
def test_invalid_vectors_are_refused_without_a_change(index, message):
    broken = BROKEN[message]
    with pytest.raises(InvalidRequest, match=message):
        last(index, broken, 5)
    with pytest.raises(InvalidRequest, match=message):
        index.add(np.array([1, 2]), np.stack([broken, broken]))
    with pytest.raises(InvalidRequest, match="shape"):
        index.search(VECTORS, 5)
    assert index.size == 800
    assert last(index, VECTORS[0], 1).ids.tolist() == [IDS[0]]


def with_places(**values):
    """A good query with other numbers in some places."""
    query = VECTORS[0].copy()
    for place, value in values.items():
        query[int(place.removeprefix("at"))] = value
    return query


@pytest.mark.parametrize(
    "query",
    [
        with_places(at0=np.inf, at1=-np.inf),
        with_places(at3=np.inf, at7=-np.inf, at11=np.inf),
        with_places(at5=np.nan),
        with_places(**{f"at{DIMENSION - 1}": -np.inf}),
    ],
)
def test_query_with_a_nan_is_refused(index, query):
    with pytest.raises(InvalidRequest, match="finite"):
        last(index, query, 5)


def test_query_accepts_any_memory_layout(index):
    query = unit(1, seed=9)[0]
    expected = last(index, query, 5)
    strided = np.stack([query, VECTORS[0]], axis=1)[:, 0]
    assert not strided.flags.c_contiguous
    for other in (strided, query.astype(np.float64), query[::-1].copy()[::-1]):
        hits = last(index, other, 5)
        assert hits.ids.tolist() == expected.ids.tolist()
        assert hits.scores.tobytes() == expected.scores.tobytes()


@pytest.mark.parametrize("make", [ivf, mapped])
@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_ivf_accepts_a_query_whose_norm_overflows(make, scale):
    query = unit(1, seed=9)[0]
    assert last(make(), (query * scale).astype(np.float32), 5).ids.tolist() == truth(query, 5)


def test_searches_run_during_changes(index):
    stop = threading.Event()
    wrong = []

    def keep_searching():
        while not stop.is_set():
            hits = last(index, VECTORS[0], 5)
            if hits.ids[0] != IDS[0]:
                wrong.append(hits)

    threads = [threading.Thread(target=keep_searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    extra = unit(2000, seed=6) * 0.5
    for at in range(0, 2000, 20):
        ids = np.arange(10_000 + at, 10_020 + at)
        index.add(ids, extra[at : at + 20])
        index.remove(ids[:10])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert index.size == 800 + 1000


def test_ivf_needs_a_rebuild_after_doubling_or_halving():
    index = ivf()
    index.add(np.arange(10_000, 10_799), unit(799, seed=7))
    assert not index.needs_rebuild
    index.add(np.array([20_000]), unit(1, seed=8))
    assert index.needs_rebuild
    index.remove(np.arange(10_000, 10_799))
    assert not index.needs_rebuild
    index.remove(IDS[:401])
    assert index.needs_rebuild


def test_ivf_needs_a_rebuild_when_lists_become_uneven():
    index = ivf()
    index.add(np.arange(10_000, 10_700), VECTORS[:1] + 0.01 * unit(700, seed=7))
    assert index.needs_rebuild


def test_hnsw_needs_a_rebuild_after_many_removals():
    index = hnsw()
    index.remove(IDS[:160])
    assert not index.needs_rebuild
    index.remove(IDS[:161])
    assert index.needs_rebuild
    assert index.size == 639


SAVED = SavedIndex("ivf", Trained(800, 1.5), b"an index\nof two lines")


def test_saved_index_is_loaded(tmp_path):
    files = IndexFiles(tmp_path, "print")
    files.save(1, SAVED)
    assert files.load(1) == SAVED
    assert files.load(2) is None
    assert IndexFiles(tmp_path, "another print").load(1) is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"x", lambda b: b"", lambda b: b"\xff" + b])
def test_damaged_file_is_ignored(tmp_path, damage):
    files = IndexFiles(tmp_path, "print")
    files.save(1, SAVED)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert files.load(1) is None


def test_failed_save_keeps_only_the_old_file(tmp_path, monkeypatch):
    files = IndexFiles(tmp_path, "print")
    files.save(1, SAVED)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.save(1, SAVED._replace(trained=Trained(1)))
    assert files.load(1) == SAVED
    assert len(list(tmp_path.iterdir())) == 1


async def test_saved_index_is_loaded_only_if_its_kind_matches(tmp_path):
    low, high = (varied(IndexSettings, ivf_threshold=threshold) for threshold in (64, 1000))
    async with running(tmp_path, index=low) as retriever:
        await put_lines(retriever, [{"id": f"d{number}", "text": f"tale {number}"} for number in range(100)])
        await retriever.wait_for_indexes()
        trained = index_of(retriever).trained
    (file,) = (tmp_path / "indexes").iterdir()
    async with running(tmp_path, index=high) as retriever:
        assert (index_of(retriever).kind, index_of(retriever).size) == ("flat", 100)
        await put_lines(retriever, [{"id": "d100", "text": "tale 100"}])
    assert file.exists()
    async with running(tmp_path, index=low) as retriever:
        loaded = index_of(retriever)
        assert (loaded.kind, loaded.trained, loaded.size) == ("ivf", trained, 101)
