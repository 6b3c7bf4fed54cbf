"""Searches that use the collection's graph."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from protocol.errors import NoGraph
from protocol.graph import GraphMode
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.embedding.base import Embedder, Vector
from retriever.graph.extractors.base import QuestionReader
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.knowledge_graph import Activation, KnowledgeGraph
from retriever.graph.names import name_key
from retriever.graph.subgraph_reader import SubgraphReader
from retriever.search.searcher import Searcher
from retriever.search.stages import first
from retriever.store.chunks import Ids
from retriever.store.database import Transaction
from retriever.store.facts import Facts
from retriever.store.filter_sql import condition_of
from retriever.store.store import Store

_DEPTH = 50
"""Chunks of the search without a graph that mode mix ranks again."""

_NEAR_NAME = 0.6
"""The least cosine of a name in the question and an entity that is spelled otherwise."""

_CHECKED_AT_ONCE = 256
"""Ranked chunks that are looked up in the store at once. Few of them are gone, so the first ones mostly suffice."""

_GRAPH_WEIGHT = 0.4
"""How much the graph's best chunk counts. The best one of the search without a graph counts 1."""

_HALF_AT = 10
"""The place, from 0, at which a chunk of the search without a graph counts half as much as its best one."""


class GraphSearcher:
    """Adds a stage to a search: it ranks chunks by the collection's graph.

    The sets of the search without a graph come first, as provisional ones.
    """

    def __init__(
        self,
        store: Store,
        facts: Facts,
        searcher: Searcher,
        catalog: GraphCatalog,
        questions: QuestionReader,
        embedder: Embedder,
        reader: SubgraphReader,
    ) -> None:
        self._store = store
        self._facts = facts
        self._searcher = searcher
        self._catalog = catalog
        self._questions = questions
        self._embedder = embedder
        self._reader = reader

    def stages(self, request: SearchRequest) -> Generator[CandidateSet, None, None]:
        """Yield the candidates of each stage. Raises what a search without a graph raises, and NoGraph before them."""
        if request.mode is GraphMode.NAIVE:
            yield from self._searcher.stages(request)
            return
        started = time.perf_counter()
        found: CandidateSet | None = None
        graph = self._graph(request)
        deeper = replace(request, candidates=max(request.candidates, _DEPTH), mode=GraphMode.NAIVE)
        vectors = self._searcher.vectors(deeper)
        for found in self._searcher.stages(deeper, vectors):
            yield replace(first(found, request.shown), of=found.of + 1, final=False, mode=request.mode)
        assert found is not None
        yield replace(
            self._ranked(request, found, graph, vectors.in_context()),
            stage=found.of + 1,
            of=found.of + 1,
            elapsed_ms=1000 * (time.perf_counter() - started),
        )

    def _graph(self, request: SearchRequest) -> KnowledgeGraph:
        with self._store.database.read() as transaction:
            collection = self._searcher.searchable(transaction, request)
            graph = self._catalog.get(collection)
            if graph is None:
                raise NoGraph(self._catalog.why_none(transaction, collection, request.collection), param="mode")
            return graph

    def _ranked(
        self, request: SearchRequest, found: CandidateSet, graph: KnowledgeGraph, question: Vector
    ) -> CandidateSet:
        near = graph.near(question)
        with self._store.database.read() as transaction:
            collection = self._store.documents.collection(transaction, request.tenant, request.collection)
            if collection is None:
                return replace(found, docs=(), scores=(), dense_scores=(), sparse_scores=(), mode=request.mode)
            activation = self._activation(transaction, collection, request, near, graph)
            mixing = request.mode is GraphMode.MIX
            base = by_place([int(chunk.chunk_id) for chunk in found.docs]) if mixing else {}
            ranking = graph.rank(activation, base)
            if mixing:
                ranking = mixed(base, ranking)
            matching = None
            if request.filters is not None:
                matching = self._store.chunks.matching(transaction, collection, condition_of(request.filters))
            ids = list(islice(self._allowed(transaction, collection, matching, ranking), request.shown))
            chunks = self._store.chunks.resolve(transaction, collection, ids)
            live = [id_ for id_ in ids if id_ in chunks]
            places = {chunk.chunk_id: place for place, chunk in enumerate(found.docs)}
            return replace(
                found,
                docs=tuple(chunks[id_] for id_ in live),
                scores=tuple(ranking[id_] for id_ in live),
                dense_scores=_picked(found.dense_scores, places, live),
                sparse_scores=_picked(found.sparse_scores, places, live),
                mode=request.mode,
                revisions=(self._store.documents.revision(transaction),),
                graph=self._reader.read(transaction, collection, graph, activation, near, matching),
            )

    def _activation(
        self, transaction: Transaction, collection: int, request: SearchRequest, near: Vector, graph: KnowledgeGraph
    ) -> Activation:
        if request.mode is GraphMode.GLOBAL:
            return graph.nearest_statements(near)
        local = graph.spread(self._seeds(transaction, collection, request.in_context, graph), near)
        return local if request.mode is GraphMode.LOCAL else local | graph.nearest_statements(near)

    def _seeds(
        self, transaction: Transaction, collection: int, question: str, graph: KnowledgeGraph
    ) -> Mapping[int, float]:
        """The entities that the question names: those spelled alike, else the nearest ones."""
        names = {key: name for name in self._questions.names_in(question) if (key := name_key(name))}
        known = self._facts.known(transaction, collection, names)
        seeds = dict.fromkeys(graph.rows_of(known.values()), 1.0)
        others = [name for key, name in names.items() if key not in known]
        if others:
            for row, cosine in graph.nearest_entities(self._embedder.embed_documents(others), _NEAR_NAME).items():
                seeds.setdefault(row, cosine)
        return seeds

    def _allowed(
        self, transaction: Transaction, collection: int, matching: Ids | None, ranking: Mapping[int, float]
    ) -> Iterator[int]:
        """The ranked chunks that are live and, if there are filters, ``matching``."""
        passing = None if matching is None else set(matching.tolist())
        ranked = iter(ranking)
        while ids := list(islice(ranked, _CHECKED_AT_ONCE)):
            kept = self._store.chunks.live(transaction, collection, ids) if passing is None else passing
            yield from (id_ for id_ in ids if id_ in kept)


def _picked(scores: Sequence[float | None], places: Mapping[str, int], ids: Sequence[int]) -> tuple[float | None, ...]:
    """The scores that these chunks have in the search without a graph."""
    return tuple(scores[places[str(id_)]] if str(id_) in places else None for id_ in ids)


def by_place(found: Sequence[int]) -> dict[int, float]:
    """What the chunks ``found`` without a graph count, by id: 1 for the first one, and less at each place.

    Places and not scores, because those of near vectors or of a fusion hardly differ: the graph alone would decide.
    """
    return {id_: _HALF_AT / (_HALF_AT + place) for place, id_ in enumerate(found)}


def mixed(base: Mapping[int, float], ranking: Mapping[int, float]) -> dict[int, float]:
    """The weighted sum of what chunks count without the graph and of their scores in it (1 for the best), best first.

    A chunk that is missing on one side counts 0 there.
    """
    sums = {id_: base.get(id_, 0.0) + _GRAPH_WEIGHT * ranking.get(id_, 0.0) for id_ in dict.fromkeys([*base, *ranking])}
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
