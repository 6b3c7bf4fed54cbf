"""A merged search ends like one search of all vectors, however they are distributed."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded_cases import ScriptedShard, found, names, sets_of, sharded
from varied import varied

from protocol.errors import NoDocuments
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from retriever.index.flat import FlatIndex
from retriever.settings import IndexSettings
from retriever.sharding.sharded_searcher import StageMerger

DIMENSION = 4
# Products of small integers are exact, so equal vectors have equal scores in every shard.
VECTORS = st.lists(st.integers(-2, 2), min_size=DIMENSION, max_size=DIMENSION).filter(any)
SHARD_STRIDE = 1000


def flat(rows: dict[int, list[int]], stages: int) -> FlatIndex:
    index = FlatIndex(DIMENSION, varied(IndexSettings, kind="flat", stages=stages, stage_ms=1e-6))
    index.add(np.array(list(rows), np.int64), np.array(list(rows.values()), np.float32))
    return index


def sets_from(index: FlatIndex, query: np.ndarray, top_k: int) -> list[CandidateSet]:
    sets = []
    for hits in index.search(query, top_k):
        docs = tuple(Chunk(str(id_), "", "", 0, "", "") for id_ in hits.ids.tolist())
        sets.append(CandidateSet(hits.stage, hits.of, docs, tuple(hits.scores.tolist()), hits.stage == hits.of, 0.0))
    return sets


@settings(deadline=None)
@given(
    spread=st.lists(st.lists(VECTORS, max_size=20), min_size=1, max_size=4).filter(any),
    query=VECTORS,
    top_k=st.integers(1, 12),
    stages=st.integers(1, 4),
)
def test_final_set_equals_a_flat_search_of_all_vectors(spread, query, top_k, stages):
    asked = np.array(query, np.float32)
    rows = {
        shard * SHARD_STRIDE + number: vector
        for shard, vectors in enumerate(spread)
        for number, vector in enumerate(vectors)
    }
    whole = sets_from(flat(rows, 1), asked, top_k)[-1]
    shards = [
        ScriptedShard(*sets_from(flat(dict(enumerate(vectors)), stages), asked, top_k))
        if vectors
        else ScriptedShard(NoDocuments("empty"))
        for vectors in spread
    ]
    request = SearchRequest("acme", "default", "what is it?", top_k)
    merged = asyncio.run(sets_of(sharded(*shards), request))[-1]
    assert merged.scores == whole.scores
    ids = [int(shard) * SHARD_STRIDE + int(number) for shard, _, number in (n.partition(".") for n in names(merged))]
    assert ids == [int(name) for name in names(whole)]


@settings(deadline=None)
@given(data=st.data(), stages=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_sets_form_one_sequence_in_any_order_of_answers(data, stages):
    merger = StageMerger(len(stages), top_k=3)
    steps = data.draw(st.permutations([shard for shard, of in enumerate(stages) for _ in range(of)]))
    come_to = [0] * len(stages)
    sets: list[CandidateSet] = []
    for shard in steps:
        come_to[shard] += 1
        merger.add(shard, found(come_to[shard], stages[shard], {str(come_to[shard]): come_to[shard] / 10}))
        if merger.ready and data.draw(st.booleans() if merger.open else st.just(True)):
            sets.append(merger.merged(0.0))
    assert [each.final for each in sets] == [False] * (len(sets) - 1) + [True]
    assert {each.of for each in sets} == {max(stages)}
    numbers = [each.stage for each in sets]
    assert numbers == [*range(1, len(sets)), max(stages)]
    assert len(sets) <= max(stages)
