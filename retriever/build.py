"""The composition of a retriever from its settings."""

import threading
from functools import partial
from pathlib import Path

from filelock import FileLock
from opentelemetry.trace import NoOpTracer, Tracer

from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.index.building import IndexBuilder
from retriever.index.catalog import IndexCatalog
from retriever.index.files import IndexFiles
from retriever.index.lock import ReadWriteLock
from retriever.index.mapped_files import MappedFiles
from retriever.index.rebuilder import Rebuilder
from retriever.ingestion.accepting import Acceptor
from retriever.ingestion.chunker import Chunker
from retriever.ingestion.ingest_counts import IngestCounts
from retriever.ingestion.ingest_thread import IngestThread
from retriever.ingestion.ingester import Ingester
from retriever.ingestion.preparing import Preparer
from retriever.loaders.confined import ConfinedLoaders
from retriever.loaders.registry import LOADERS, LoaderRegistry
from retriever.retriever import Retriever
from retriever.search.search import Searcher
from retriever.settings import RetrieverSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.jobs import Jobs
from retriever.store.orphans import Orphans
from retriever.threads import work_in_background


def build_retriever(
    settings: RetrieverSettings,
    data_dir: Path,
    embedder: Embedder | None = None,
    database: Database | None = None,
    tracer: Tracer | None = None,
) -> Retriever:
    """A retriever that has yet to be started; its model is loaded here, which takes seconds.

    ``data_dir`` belongs to one retriever process alone. ``embedder`` and ``database`` stand in for those that the
    settings name; ``tracer`` records the embedding of questions. Raises ConfigError, StorageFull, or Unavailable for an
    embedding endpoint that does not answer.
    """
    embedder = embedder or build_embedder(settings.embedder)
    database = database or Database(data_dir / "store.sqlite3", settings.max_database_bytes)
    orphans = Orphans()
    documents, chunks, jobs = Documents(orphans), Chunks(), Jobs()
    chunker = Chunker(embedder.tokenizer, embedder.max_tokens, settings.chunks)
    preparer = Preparer(chunker, embedder)
    files, mapped = IndexFiles(data_dir / "indexes"), MappedFiles(data_dir / "indexes")
    wake_ingestion = threading.Event()
    builder = IndexBuilder(database, chunks, mapped, embedder.dimension, preparer.fingerprint, settings.index)
    rebuilder = Rebuilder(builder, wake_ingestion)
    catalog = IndexCatalog(database, chunks, files, mapped, builder, rebuilder, preparer.fingerprint)
    switching = ReadWriteLock()
    counts = IngestCounts()
    ingester = Ingester(database, documents, jobs, preparer, catalog, switching, settings.ingest, counts)
    confined = ConfinedLoaders(settings.loaders)
    loaders = LoaderRegistry({**LOADERS, **confined.loaders})
    return Retriever(
        database=database,
        documents=documents,
        chunks=chunks,
        jobs=jobs,
        orphans=orphans,
        preparer=preparer,
        catalog=catalog,
        searcher=Searcher(database, documents, chunks, catalog, embedder, switching, tracer or NoOpTracer()),
        acceptor=Acceptor(database, documents, jobs, loaders, ingester, settings.ingest, counts),
        ingester=ingester,
        counts=counts,
        ingest_thread=IngestThread(
            ingester,
            settings.ingest,
            prepare=partial(work_in_background, partial(embedder.embed_query, "warm up")),
            wake=wake_ingestion,
        ),
        loaders=confined,
        search_threads=settings.search_threads,
        # Taken and given back by different threads of a pool.
        owner=FileLock(data_dir / "retriever.lock", thread_local=False),
    )
