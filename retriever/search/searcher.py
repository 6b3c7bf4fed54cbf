"""The search: ask the indexes, resolve what they propose in the store, and rank it."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from protocol.errors import InvalidRequest, NoDocuments, NoGraph, UnknownFilterKey
from protocol.filters import Filter
from protocol.graph import GraphMode
from protocol.retrieval import CandidateSet, SearchKind, SearchRequest
from retriever.embedding.base import Vector
from retriever.index.catalog import IndexCatalog
from retriever.index.read_write_lock import ReadWriteLock
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.search.fusion import depth, ranked
from retriever.search.question_vectors import QuestionEmbedder, QuestionVectors
from retriever.store.chunks import Ids
from retriever.store.database import Transaction
from retriever.store.filter_sql import condition_of, filter_keys
from retriever.store.store import Store

Ranking = dict[int, float]
"""Scores by chunk id, best first."""

_ATTEMPTS = 3


class Proposals(NamedTuple):
    """The best chunks of each ranking after ``stage`` of ``of``. One that is not searched, or not yet, is empty."""

    dense: Ranking
    sparse: Ranking
    stage: int
    of: int


class Searcher:
    """Asks a collection's indexes and resolves the proposed ids in the store.

    An index may propose stale chunks, which the store no longer has, in place of live ones. Then the search repeats:
    once for more of them, and at last among live chunks only, with ``replacement_lock`` held so that none is replaced
    meanwhile. ``default`` is the kind of search where neither request nor collection say one.
    """

    def __init__(
        self,
        store: Store,
        catalog: IndexCatalog,
        lexical: LexicalCatalog,
        questions: QuestionEmbedder,
        replacement_lock: ReadWriteLock,
        default: SearchKind,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._lexical = lexical
        self._questions = questions
        self._replacement_lock = replacement_lock
        self._default = default

    def stages(
        self, request: SearchRequest, vectors: QuestionVectors | None = None
    ) -> Generator[CandidateSet, None, None]:
        """Yield the candidates of each stage. ``vectors`` are the question's, if the caller needs them, too.

        Raises InvalidRequest, UnknownCollection, NoDocuments, NoGraph or UnknownFilterKey before the first stage. A
        hybrid search embeds the query after its first stage. The embedder's errors, and InvalidRequest for a query
        without a direction, may therefore come after it.
        """
        started = time.perf_counter()
        if request.top_k < 1:
            raise InvalidRequest("top_k must be at least 1", param="top_k")
        if request.mode is not GraphMode.NAIVE:
            raise NoGraph("documents are stored without a graph: retriever.graph.kind is none", param="mode")
        with self._store.database.read() as transaction:
            collection = self.searchable(transaction, request)
            kind = request.search or self._store.documents.search_kind(transaction, collection) or self._default
            unknown = self._unknown_keys(transaction, collection, request.filters)
        if unknown and request.check_keys:
            raise UnknownFilterKey(f"no document has an attribute {unknown[0]!r}", param="filters")
        vectors = vectors or self.vectors(request)
        searched = CandidateSet(1, 1, (), (), final=False, elapsed_ms=0.0, search=kind, unknown_keys=unknown)
        wanted, spare, stale = depth(kind, request.top_k, request.shown), 0, 0
        of = 1
        provisional: tuple[list[list[int]], CandidateSet] | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            last_attempt = attempt == _ATTEMPTS
            with self._replacement_lock.reading() if last_attempt else nullcontext():
                allowed = self._allowed(collection, request.filters, live_only=last_attempt)
                for proposals in self._proposals(
                    collection, kind, request.in_context, vectors.searched, wanted + spare, allowed
                ):
                    ids = [list(proposals.dense), list(proposals.sparse)]
                    if proposals.stage < proposals.of and provisional is not None and provisional[0] == ids:
                        # Only the final stage must match the store's current state.
                        candidates = provisional[1]
                    else:
                        candidates, stale = self._resolve(collection, proposals, wanted, request, searched)
                        provisional = ids, candidates
                    candidates = replace(
                        candidates,
                        stage=proposals.stage,
                        of=proposals.of,
                        final=proposals.stage == proposals.of,
                        elapsed_ms=1000 * (time.perf_counter() - started),
                    )
                    if candidates.final:
                        break
                    if attempt == 1:
                        of = proposals.of
                        yield candidates
            if last_attempt or not stale:
                # A repeated search also ends the stage sequence of the first attempt.
                yield replace(candidates, stage=of, of=of)
                return
            spare = 2 * stale + request.top_k

    def vectors(self, request: SearchRequest) -> QuestionVectors:
        """Return the vectors of a request's question, which are embedded when they are wanted."""
        return QuestionVectors(request, self._questions)

    def searchable(self, transaction: Transaction, request: SearchRequest) -> int:
        """Return the key of a request's collection. Raises UnknownCollection or NoDocuments."""
        collection = self._store.documents.collection(transaction, request.tenant, request.collection)
        if collection is None or not self._store.chunks.has_any(transaction, collection):
            raise NoDocuments(f"{request.collection!r} has no documents to search yet", param="collection")
        return collection

    def _unknown_keys(self, transaction: Transaction, collection: int, filters: Filter | None) -> tuple[str, ...]:
        keys = () if filters is None else dict.fromkeys(filter_keys(filters))
        return tuple(key for key in keys if not self._store.chunks.has_attribute(transaction, collection, key))

    def _allowed(self, collection: int, filters: Filter | None, *, live_only: bool) -> Ids | None:
        with self._store.database.read() as transaction:
            if filters is not None:
                return self._store.chunks.matching(transaction, collection, condition_of(filters))
            return self._store.chunks.ids(transaction, collection) if live_only else None

    def _proposals(
        self, collection: int, kind: SearchKind, text: str, embedded: Callable[[], Vector], k: int, allowed: Ids | None
    ) -> Iterator[Proposals]:
        """Yield the ``k`` best of each ranking that a search of this ``kind`` needs, among ``allowed``, in stages.

        Words are searched first, because the query has to be ``embedded`` for the other index. Raises NoDocuments
        before the first stage, and later what embedding raises, or InvalidRequest for a query without a direction.
        """
        vectors, words = self._catalog.get(collection), self._lexical.get(collection)
        if vectors is None or words is None:
            raise NoDocuments("the collection has no documents to search yet", param="collection")
        sparse: Ranking = {}
        before = 0
        if kind is not SearchKind.DENSE:
            found = words.search(text, k, allowed)
            sparse = dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))
            before = 1
            yield Proposals({}, sparse, before, before + (kind is SearchKind.HYBRID))
        if kind is not SearchKind.SPARSE:
            for hits in vectors.search(embedded(), k, allowed):
                # Rounding can push the inner product of unit vectors above 1.
                scores = hits.scores.clip(-1.0, 1.0).tolist()
                dense = dict(zip(hits.ids.tolist(), scores, strict=True))
                yield Proposals(dense, sparse, before + hits.stage, before + hits.of)

    def _resolve(
        self, collection: int, proposals: Proposals, wanted: int, request: SearchRequest, searched: CandidateSet
    ) -> tuple[CandidateSet, int]:
        """Return the live chunks, all read from one snapshot of the store, and the number of stale proposals.

        Rankings are cut to ``wanted`` live chunks each. ``searched`` is the set to fill.
        """
        proposed = list(dict.fromkeys([*proposals.dense, *proposals.sparse]))
        with self._store.database.read() as transaction:
            live = self._store.chunks.live(transaction, collection, proposed)
            dense, sparse = (_first(ranking, live, wanted) for ranking in (proposals.dense, proposals.sparse))
            hits = ranked(searched.search, dense, sparse, wanted)
            shown = list(islice(hits, request.shown if request.fuse else None))
            chunks = self._store.chunks.resolve(transaction, collection, shown)
            revision = self._store.documents.revision(transaction)
        found = replace(
            searched,
            docs=tuple(chunks[id_] for id_ in shown),
            scores=tuple(hits[id_].score for id_ in shown),
            dense_scores=tuple(hits[id_].dense for id_ in shown),
            sparse_scores=tuple(hits[id_].sparse for id_ in shown),
            revisions=(revision,),
        )
        return found, len(proposed) - len(live)


def _first(ranking: Mapping[int, float], live: set[int], count: int) -> dict[int, float]:
    """The first ``count`` live chunks of a ranking."""
    return dict(islice(((id_, score) for id_, score in ranking.items() if id_ in live), count))
