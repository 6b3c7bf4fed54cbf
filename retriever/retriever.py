"""The retriever: an implementation of `protocol.parts.Retriever`."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Concatenate, ParamSpec, TypeVar

from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.errors import InvalidRequest, NoGraph, RetrieverNotReady, UnknownDocument
from protocol.graph import GraphRequest, GraphView
from protocol.retrieval import CandidateSet, DocumentChunks, EmbeddingRequest, Embeddings, SearchKind, SearchRequest
from retriever.embedding.base import Embedder, embed_request
from retriever.graph.graph_searcher import GraphSearcher
from retriever.graph.retriever_graph import RetrieverGraph
from retriever.ingestion.document_checks import checked_name
from retriever.ingestion.upload_intake import Ingestion
from retriever.lifecycle import Lifecycle
from retriever.machine import search_on_one_core
from retriever.reranking.base import Reranker, Reranking, Scores
from retriever.search.searcher import Searcher
from retriever.search.stages import iterate_in_thread
from retriever.store.database import Transaction
from retriever.store.store import Store

_LONGEST_PAGE = 1000

_SEARCH_THREADS = 4
"""Searches that run at once."""

P = ParamSpec("P")
T = TypeVar("T")


class Retriever:
    """Stores documents and searches their chunks. ``build_retriever`` creates one.

    No call blocks the event loop. Searches have their own threads, so a large upload never delays one. Before ``start``
    returns and after ``close`` begins, every call raises RetrieverNotReady.
    """

    def __init__(
        self,
        store: Store,
        searcher: Searcher | GraphSearcher,
        reranker: Reranker,
        reranking: Reranking,
        embedder: Embedder,
        ingestion: Ingestion,
        graph: RetrieverGraph | None,
        lifecycle: Lifecycle,
    ) -> None:
        self._store = store
        self._searcher = searcher
        self._reranker = reranker
        self._reranking = reranking
        self._embedder = embedder
        self._ingestion = ingestion
        self._graph = graph
        self._lifecycle = lifecycle
        self._search_pool = _pool(_SEARCH_THREADS, "retriever-search")
        # Its own thread, so that many texts delay no search.
        self._embedding_pool = _pool(1, "retriever-embedding")
        self._store_pool = _pool(2, "retriever-store")
        self._ready = False
        self._closed = False

    async def start(self) -> None:
        """Open all parts, and start ingestion. Raises as ``Lifecycle.open``."""
        await asyncio.get_running_loop().run_in_executor(self._store_pool, self._lifecycle.open)
        self._ready = True

    async def close(self) -> None:
        """Stop for good. The current group is finished, queued documents stay queued, indexes are saved. Idempotent."""
        self._ready = False
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(None, self._shut_down)
            await self._reranker.close()

    async def ready(self) -> None:
        """Return if searches can be served. Raises RetrieverNotReady otherwise."""
        self._check_ready()

    async def wait_for_indexes(self) -> None:
        """Return when no index rebuild is pending for the documents ingested so far. Searches do not need this."""
        self._check_ready()
        await asyncio.to_thread(self._ingestion.ingester.wait_for_indexes)

    async def wait_for_graph(self) -> None:
        """Return when the graph has read all that has been ingested so far; at once if there is no graph."""
        self._check_ready()
        if self._graph is not None:
            await asyncio.to_thread(self._graph.wait)

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages. Raises as the contract says, and InvalidRequest, before the first stage.

        The search continues while the caller handles a stage. Closing the generator ends it after the current stage.
        """
        self._check_ready()
        async with aclosing(self._reranking(request, self._searched)) as stages:
            async for candidates in stages:
                yield candidates

    async def rerank(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the reranker's score of each text. Raises as the shard's contract says."""
        self._check_ready()
        return await self._reranker.scores(query, texts, wanted)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed texts. Raises UnknownModel, InvalidRequest, and what the embedder raises."""
        self._check_ready()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._embedding_pool, embed_request, self._embedder, request)

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a document for ingestion. Raises as the contract says."""
        job = await self._change(self._ingestion.intake.put_document, tenant, collection, upload, idempotency_key)
        self._ingestion.thread.wake()
        return job

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a batch of documents for ingestion. Raises as the contract says."""
        job = await self._change(self._ingestion.intake.put_batch, tenant, collection, jsonl, idempotency_key)
        self._ingestion.thread.wake()
        return job

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to the hash of a body. Raises as the shard's contract says."""
        await self._write(self._store.jobs.claim_key, tenant, key, body_hash)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document, its chunks and its queued uploads in one transaction."""
        await self._change(self._ingestion.intake.delete_document, tenant, collection, document_id)
        self._ingestion.thread.wake()

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Return a document with its text. Raises UnknownCollection or UnknownDocument."""
        return await self._read(self._store.documents.get, tenant, collection, document_id)

    async def chunks(self, tenant: str, collection: str, document_id: str) -> DocumentChunks:
        """Return a document's chunks in order. Raises UnknownCollection or UnknownDocument."""
        return await self._read(self._chunks_of, tenant, collection, document_id)

    async def put_collection(self, tenant: str, collection: str, search: SearchKind | None) -> None:
        """Create a collection, or change how it is searched. Raises InvalidRequest or StorageFull."""
        self._check_ready()
        checked_name(collection, "collection")
        await self._write(self._store.documents.put_collection, tenant, collection, search)

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """Return a page of documents with ids above ``after``. Raises UnknownCollection or InvalidRequest."""
        if not 1 <= limit <= _LONGEST_PAGE:
            raise InvalidRequest(f"limit must be between 1 and {_LONGEST_PAGE}, not {limit}", param="limit")
        return await self._read(self._store.documents.page, tenant, collection, limit, after or "")

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """Return the tenant's collections, sorted by name."""
        return await self._read(self._collections, tenant)

    async def view_graph(self, request: GraphRequest) -> GraphView:
        """Return a part of a collection's graph. Raises UnknownCollection, NoGraph or UnknownEntity."""
        return await self._read(self._view, request)

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """Return the current state of a job. Raises UnknownJob."""
        return await self._read(self._store.jobs.get, tenant, job_id)

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """Return the orphans that a document left when it was deleted or replaced."""
        return await self._read(self._store.orphans.of_document, tenant, collection, document_id)

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """Return the oldest orphans that are at least ``older_than_s`` seconds old."""
        return await self._read(self._store.orphans.older_than, older_than_s, limit)

    async def attempt_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Count an attempt to delete the KV of each. Raises StorageFull."""
        await self._write(self._store.orphans.attempt, orphans)

    async def give_up_orphans(self, orphans: Sequence[Orphan], reason: str) -> None:
        """Give up deleting the KV of orphans. Raises StorageFull."""
        await self._write(self._store.orphans.give_up, orphans, reason)

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Remove orphans from the list. Raises StorageFull."""
        await self._write(self._store.orphans.forget, orphans)

    async def stats(self) -> RetrieverStats:
        """Return counters since the start, and gauges."""
        return await self._read(self._stats)

    def _searched(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        return iterate_in_thread(self._search_pool, self._searcher.stages(request))

    def _check_ready(self) -> None:
        if not self._ready:
            raise RetrieverNotReady("the retriever is not ready")

    async def _change(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_ready()
        return await asyncio.get_running_loop().run_in_executor(self._store_pool, lambda: call(*args, **kwargs))

    async def _write(
        self, call: Callable[Concatenate[Transaction, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        def write() -> None:
            with self._store.database.write() as transaction:
                call(transaction, *args, **kwargs)

        await self._change(write)

    async def _read(self, call: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def read() -> T:
            with self._store.database.read() as transaction:
                return call(transaction, *args, **kwargs)

        self._check_ready()
        return await asyncio.get_running_loop().run_in_executor(self._search_pool, read)

    def _collections(self, transaction: Transaction, tenant: str) -> Sequence[CollectionInfo]:
        infos = self._store.documents.collections(transaction, tenant)
        return infos if self._graph is None else self._graph.viewer.with_states(transaction, tenant, infos)

    def _view(self, transaction: Transaction, request: GraphRequest) -> GraphView:
        if self._graph is not None:
            return self._graph.viewer.view(transaction, request)
        self._store.documents.collection(transaction, request.tenant, request.collection)
        raise NoGraph("documents are stored without a graph: retriever.graph.kind is none", param="collection")

    def _chunks_of(self, transaction: Transaction, tenant: str, collection: str, document_id: str) -> DocumentChunks:
        documents = self._store.documents
        collection_key = documents.collection(transaction, tenant, collection)
        if collection_key is None or documents.content_hash(transaction, collection_key, document_id) is None:
            raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", param="document_id")
        chunks = self._store.chunks.of_document(transaction, collection_key, document_id)
        return DocumentChunks(tuple(chunks), self._store.documents.revision(transaction))

    def _stats(self, transaction: Transaction) -> RetrieverStats:
        disk = shutil.disk_usage(self._lifecycle.data_dir)
        counts, queued = self._ingestion.counts.snapshot(), self._store.jobs.queued(transaction)
        missing = (None, None) if self._graph is None else self._graph.viewer.missing_chunks(transaction)
        return RetrieverStats(counts, queued, disk.total, disk.free, *missing)

    def _shut_down(self) -> None:
        self._search_pool.shutdown()
        self._embedding_pool.shutdown(cancel_futures=True)
        self._store_pool.shutdown()
        self._lifecycle.close()


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, name, initializer=search_on_one_core)
