"""The search: from a question to live chunks, stage by stage."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext

from msgspec.structs import replace
from opentelemetry.trace import Tracer

from protocol.errors import InvalidRequest, NoDocuments, UnknownFilterKey
from protocol.filters import Filter
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.embedding.base import Embedder, Vector
from retriever.index.base import Ids, StageHits
from retriever.index.catalog import IndexCatalog
from retriever.index.lock import ReadWriteLock
from retriever.search.filters import condition_of, filter_keys
from retriever.search.tracing import embeddings
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction
from retriever.store.documents import Documents

_ATTEMPTS = 3


class Searcher:
    """Asks a collection's index, and resolves what it proposes in the store.

    An index may propose chunks that are no longer live, in the place of ones that are. A search that met such chunks is
    made again: first for more chunks, then among the live ones only, while ``switching`` holds replacements off.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        chunks: Chunks,
        catalog: IndexCatalog,
        embedder: Embedder,
        switching: ReadWriteLock,
        tracer: Tracer,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._database = database
        self._documents = documents
        self._chunks = chunks
        self._catalog = catalog
        self._embedder = embedder
        self._switching = switching
        self._tracer = tracer
        self._clock = clock

    def stages(self, request: SearchRequest) -> Generator[CandidateSet, None, None]:
        """The stages of a search.

        Raises InvalidRequest, UnknownCollection, NoDocuments or UnknownFilterKey, and what the embedder raises, all
        before the first stage.
        """
        started = self._clock()
        if request.top_k < 1:
            raise InvalidRequest("top_k must be at least 1", param="top_k")
        with self._database.read() as transaction:
            collection = self._searchable(transaction, request)
            unknown = self._unknown_keys(transaction, collection, request.filters)
        if unknown and request.check_keys:
            raise UnknownFilterKey(f"no document has an attribute {unknown[0]!r}", param="filters")
        with embeddings(self._tracer, self._embedder, request.traceparent):
            query = self._embedder.embed_query(request.query)
        spare = dead = 0
        of = 1
        provisional: tuple[list[int], CandidateSet] | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            last_attempt = attempt == _ATTEMPTS
            with self._switching.reading() if last_attempt else nullcontext():
                for hits in self._propose(collection, request, query, spare, live_only=last_attempt):
                    ids = hits.ids.tolist()
                    if hits.stage < hits.of and provisional is not None and provisional[0] == ids:
                        # Only what is final has to be what the store has now.
                        elapsed_ms = 1000 * (self._clock() - started)
                        candidates = replace(provisional[1], stage=hits.stage, elapsed_ms=elapsed_ms)
                    else:
                        candidates, dead = self._resolve(collection, ids, hits, request.top_k, unknown, started)
                        provisional = ids, candidates
                    if candidates.final:
                        break
                    if attempt == 1:
                        of = hits.of
                        yield candidates
            if last_attempt or not dead:
                # Whichever attempt it is of, it ends the row of stages that the first one began.
                yield replace(candidates, stage=of, of=of)
                return
            spare = 2 * dead + request.top_k

    def _propose(
        self, collection: int, request: SearchRequest, query: Vector, spare: int, *, live_only: bool
    ) -> Iterator[StageHits]:
        index = self._catalog.get(collection)
        if index is None:
            raise NoDocuments(f"{request.collection!r} holds nothing to search yet", param="collection")
        allowed = self._allowed(collection, request.filters, live_only=live_only)
        return index.search(query, request.top_k + spare, allowed)

    def _searchable(self, transaction: Transaction, request: SearchRequest) -> int:
        collection = self._documents.collection(transaction, request.tenant, request.collection)
        if collection is None or not self._chunks.any(transaction, collection):
            raise NoDocuments(f"{request.collection!r} holds nothing to search yet", param="collection")
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
        """The live ones of the hits, all read from one state of the store, and how many are not."""
        with self._database.read() as transaction:
            live = self._chunks.resolve(transaction, collection, ids)
        found = [(live[id_], score) for id_, score in zip(ids, hits.scores.tolist(), strict=True) if id_ in live]
        candidates = CandidateSet(
            stage=hits.stage,
            of=hits.of,
            docs=tuple(chunk for chunk, _ in found[:top_k]),
            # Rounding may carry a product of unit vectors past 1.
            scores=tuple(max(-1.0, min(1.0, score)) for _, score in found[:top_k]),
            final=hits.stage == hits.of,
            elapsed_ms=1000 * (self._clock() - started),
            unknown_keys=unknown_keys,
        )
        return candidates, len(ids) - len(live)
