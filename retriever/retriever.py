"""The retriever: `protocol.parts.Retriever` as a plain object."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.errors import Conflict, InvalidRequest, RetrieverNotReady, UnknownDocument
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from retriever.index.catalog import IndexCatalog
from retriever.ingestion.accepting import Acceptor
from retriever.ingestion.ingest_counts import IngestCounts
from retriever.ingestion.ingest_thread import IngestThread
from retriever.ingestion.ingester import Ingester
from retriever.ingestion.preparing import Preparer
from retriever.ingestion.reembedding import reembed
from retriever.loaders.confined import ConfinedLoaders
from retriever.search.run_ahead import run_ahead
from retriever.search.search import Searcher
from retriever.store.chunks import Chunks
from retriever.store.database import Database, Transaction
from retriever.store.documents import Documents
from retriever.store.jobs import Jobs
from retriever.store.orphans import Orphans
from retriever.threads import stay_single

_LONGEST_PAGE = 1000
_PREDECESSOR_S = 20.0

P = ParamSpec("P")
T = TypeVar("T")


class Retriever:
    """Keeps documents and finds chunks of them; ``build_retriever`` puts one together.

    Nothing blocks the event loop: searches have threads of their own, so that no upload, however large, stands before
    one. Every call before ``start`` has ended or after ``close`` has begun raises RetrieverNotReady.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        chunks: Chunks,
        jobs: Jobs,
        orphans: Orphans,
        preparer: Preparer,
        catalog: IndexCatalog,
        searcher: Searcher,
        acceptor: Acceptor,
        ingester: Ingester,
        counts: IngestCounts,
        ingest_thread: IngestThread,
        loaders: ConfinedLoaders,
        search_threads: int,
        owner: FileLock,
    ) -> None:
        self._database = database
        self._documents = documents
        self._chunks = chunks
        self._jobs = jobs
        self._orphans = orphans
        self._preparer = preparer
        self._catalog = catalog
        self._searcher = searcher
        self._acceptor = acceptor
        self._ingester = ingester
        self._counts = counts
        self._ingest_thread = ingest_thread
        self._loaders = loaders
        self._search_pool = _pool(search_threads, "retriever-search")
        self._store_pool = _pool(2, "retriever-store")
        self._owner = owner
        self._ready = False
        self._closed = False

    async def start(self) -> None:
        """Bring store and indexes together, embed anew what another embedder made, and begin to ingest.

        Raises what the embedder raises if it has to embed, StorageFull, and Conflict while another retriever works on
        the same data.
        """
        await asyncio.get_running_loop().run_in_executor(self._store_pool, self._open)
        self._ready = True

    async def close(self) -> None:
        """End for good: documents in hand go in, the rest stays queued, and indexes are saved. Idempotent."""
        self._ready = False
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(None, self._shut)

    async def ready(self) -> None:
        """Return when searches can be served; raises RetrieverNotReady."""
        self._check_ready()

    async def settle(self) -> None:
        """Return when no index is being built anew for what has gone in so far; searches are served before, too."""
        self._check_ready()
        await asyncio.to_thread(self._ingester.settle)

    async def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages; see the contract for what it raises, and InvalidRequest, before the first.

        The search goes on while the caller thinks about a stage, and ends after the stage in hand when this is closed.
        """
        self._check_ready()
        async with aclosing(run_ahead(self._search_pool, self._searcher.stages(request))) as stages:
            async for candidates in stages:
                yield candidates

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a document; see the contract for what it raises."""
        job = await self._store(self._acceptor.put_document, tenant, collection, upload, idempotency_key)
        self._ingest_thread.notify()
        return job

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Accept a batch; see the contract for what it raises."""
        job = await self._store(self._acceptor.put_batch, tenant, collection, jsonl, idempotency_key)
        self._ingest_thread.notify()
        return job

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key to the hash of a body; see the contract of a shard."""
        await self._store(self._acceptor.claim_key, tenant, key, body_hash)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document, its chunks and its uploads that are still queued, in one step."""
        await self._store(self._acceptor.delete_document, tenant, collection, document_id)
        self._ingest_thread.notify()

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Read a document back. Raises UnknownCollection or UnknownDocument."""
        return await self._read(self._documents.get, tenant, collection, document_id)

    async def chunks(self, tenant: str, collection: str, document_id: str) -> Sequence[Chunk]:
        """The chunks of a document in their order. Raises UnknownCollection or UnknownDocument."""
        return await self._read(self._chunks_of, tenant, collection, document_id)

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """List a page of documents behind the id ``after``. Raises UnknownCollection or InvalidRequest."""
        if not 1 <= limit <= _LONGEST_PAGE:
            raise InvalidRequest(f"limit must lie between 1 and {_LONGEST_PAGE}", param="limit")
        return await self._read(self._documents.page, tenant, collection, limit, after or "")

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """List the tenant's collections by name."""
        return await self._read(self._documents.collections, tenant)

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """The job's state now. Raises UnknownJob."""
        return await self._read(self._jobs.get, tenant, job_id)

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """The orphans that went with a document, or with what it was replaced by."""
        return await self._read(self._orphans.of_document, tenant, collection, document_id)

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """The oldest of those that are orphans for so many seconds."""
        return await self._read(self._orphans.older_than, older_than_s, limit)

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Take orphans off the list. Raises StorageFull."""
        await self._store(self._forget, orphans)

    async def stats(self) -> RetrieverStats:
        """Counters since the start, and gauges."""
        return await self._read(self._stats)

    def _check_ready(self) -> None:
        if not self._ready:
            raise RetrieverNotReady("the retriever is not ready")

    async def _store(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_ready()
        return await asyncio.get_running_loop().run_in_executor(self._store_pool, lambda: call(*args, **kwargs))

    async def _read(self, call: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        def read() -> T:
            with self._database.read() as transaction:
                return call(transaction, *args, **kwargs)

        self._check_ready()
        return await asyncio.get_running_loop().run_in_executor(self._search_pool, read)

    def _chunks_of(self, transaction: Transaction, tenant: str, collection: str, document_id: str) -> list[Chunk]:
        held_in = self._documents.collection(transaction, tenant, collection)
        if held_in is None or self._documents.content_hash(transaction, held_in, document_id) is None:
            raise UnknownDocument(f"there is no document {document_id!r} in {collection!r}", param="document_id")
        return self._chunks.of_document(transaction, held_in, document_id)

    def _stats(self, transaction: Transaction) -> RetrieverStats:
        disk = shutil.disk_usage(Path(self._owner.lock_file).parent)
        return RetrieverStats(self._counts.now(), self._jobs.queued(transaction), disk.total, disk.free)

    def _forget(self, orphans: Sequence[Orphan]) -> None:
        with self._database.write() as transaction:
            self._orphans.forget(transaction, orphans)

    def _open(self) -> None:
        # Two would give out the same chunk ids. A predecessor that is being replaced gets time to end.
        try:
            self._owner.acquire(timeout=_PREDECESSOR_S)
        except Timeout as error:
            raise Conflict(f"another retriever works on {Path(self._owner.lock_file).parent}") from error
        with self._database.read() as transaction:
            self._preparer.number_from(self._chunks.last_id(transaction))
        reembed(self._database, self._documents, self._preparer)
        self._catalog.open()
        self._ingest_thread.start()

    def _shut(self) -> None:
        self._ingest_thread.close()
        self._search_pool.shutdown()
        self._store_pool.shutdown()
        self._loaders.close()
        self._catalog.close()
        self._database.close()
        self._owner.release()


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, name, initializer=stay_single)
