"""The search: embed the query, search the index, resolve the hits in the store."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext

from msgspec.structs import replace
from opentelemetry.trace import Tracer

from protocol.errors import InvalidRequest, NoDocuments, UnknownFilterKey
from protocol.filters import Filter
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.embedding.base import Embedder, Vector
from retriever.index.base import StageHits
from retriever.index.catalog import IndexCatalog
from retriever.index.read_write_lock import ReadWriteLock
from retriever.search.embedding_span import embedding_span
from retriever.store.chunks import Chunks, Ids
from retriever.store.database import Database, Transaction
from retriever.store.documents import Documents
from retriever.store.filter_sql import condition_of, filter_keys

_ATTEMPTS = 3


class Searcher:
    """Searches a collection's index and resolves the proposed ids in the store.

    The index may propose stale chunks, which the store no longer has, in place of live ones. Then the search repeats:
    once with a larger ``k``, and at last among live chunks only, with ``replacement_lock`` held so that none is
    replaced meanwhile.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        chunks: Chunks,
        catalog: IndexCatalog,
        embedder: Embedder,
        replacement_lock: ReadWriteLock,
        tracer: Tracer,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._database = database
        self._documents = documents
        self._chunks = chunks
        self._catalog = catalog
        self._embedder = embedder
        self._replacement_lock = replacement_lock
        self._tracer = tracer
        self._clock = clock

    def stages(self, request: SearchRequest) -> Generator[CandidateSet, None, None]:
        """Yield the candidates of each stage.

        Raises InvalidRequest, UnknownCollection, NoDocuments or UnknownFilterKey, and what the embedder raises. All of
        these are raised before the first stage.
        """
        started = self._clock()
        if request.top_k < 1:
            raise InvalidRequest("top_k must be at least 1", param="top_k")
        with self._database.read() as transaction:
            collection = self._searchable(transaction, request)
            unknown = self._unknown_keys(transaction, collection, request.filters)
        if unknown and request.check_keys:
            raise UnknownFilterKey(f"no document has an attribute {unknown[0]!r}", param="filters")
        with embedding_span(self._tracer, self._embedder, request.traceparent):
            query = self._embedder.embed_query(request.query)
        spare = stale = 0
        of = 1
        provisional: tuple[list[int], CandidateSet] | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            last_attempt = attempt == _ATTEMPTS
            with self._replacement_lock.reading() if last_attempt else nullcontext():
                for hits in self._index_hits(collection, request, query, spare, live_only=last_attempt):
                    ids = hits.ids.tolist()
                    if hits.stage < hits.of and provisional is not None and provisional[0] == ids:
                        # Only the final stage must match the store's current state.
                        elapsed_ms = 1000 * (self._clock() - started)
                        candidates = replace(provisional[1], stage=hits.stage, elapsed_ms=elapsed_ms)
                    else:
                        candidates, stale = self._resolve(collection, ids, hits, request.top_k, unknown, started)
                        provisional = ids, candidates
                    if candidates.final:
                        break
                    if attempt == 1:
                        of = hits.of
                        yield candidates
            if last_attempt or not stale:
                # A repeated search also ends the stage sequence of the first attempt.
                yield replace(candidates, stage=of, of=of)
                return
            spare = 2 * stale + request.top_k

    def _index_hits(
        self, collection: int, request: SearchRequest, query: Vector, spare: int, *, live_only: bool
    ) -> Iterator[StageHits]:
        index = self._catalog.get(collection)
        if index is None:
            raise NoDocuments(f"{request.collection!r} has no documents to search yet", param="collection")
        allowed = self._allowed(collection, request.filters, live_only=live_only)
        return index.search(query, request.top_k + spare, allowed)

    def _searchable(self, transaction: Transaction, request: SearchRequest) -> int:
        collection = self._documents.collection(transaction, request.tenant, request.collection)
        if collection is None or not self._chunks.has_any(transaction, collection):
            raise NoDocuments(f"{request.collection!r} has no documents to search yet", param="collection")
        return collection

    def _unknown_keys(self, transaction: Transaction, collection: int, filters: Filter | None) -> tuple[str, ...]:
        keys = () if filters is None else dict.fromkeys(filter_keys(filters))
        return tuple(key for key in keys if not self._chunks.has_attribute(transaction, collection, key))

    def _allowed(self, collection: int, filters: Filter | None, *, live_only: bool) -> Ids | None:
        with self._database.read() as transaction:
            if filters is not None:
                return self._chunks.matching(transaction, collection, condition_of(filters))
            return self._chunks.ids(transaction, collection) if live_only else None

    def _resolve(
        self,
        collection: int,
        ids: list[int],
        hits: StageHits,
        top_k: int,
        unknown_keys: tuple[str, ...],
        started: float,
    ) -> tuple[CandidateSet, int]:
        """Return the live hits, all read from one snapshot of the store, and the number of stale hits."""
        with self._database.read() as transaction:
            live = self._chunks.resolve(transaction, collection, ids)
        found = [(live[id_], score) for id_, score in zip(ids, hits.scores.tolist(), strict=True) if id_ in live]
        candidates = CandidateSet(
            stage=hits.stage,
            of=hits.of,
            docs=tuple(chunk for chunk, _ in found[:top_k]),
            # Rounding can push the inner product of unit vectors above 1.
            scores=tuple(max(-1.0, min(1.0, score)) for _, score in found[:top_k]),
            final=hits.stage == hits.of,
            elapsed_ms=1000 * (self._clock() - started),
            unknown_keys=unknown_keys,
        )
        return candidates, len(ids) - len(live)
