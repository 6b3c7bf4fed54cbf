"""Build a retriever from its settings."""

import threading
from functools import partial
from pathlib import Path

from filelock import FileLock
from opentelemetry.trace import NoOpTracer, Tracer

from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.graph.retriever_graph import build_graph
from retriever.index.builder import IndexBuilder
from retriever.index.catalog import IndexCatalog, Rebuilder
from retriever.index.index_files import IndexFiles
from retriever.index.read_write_lock import ReadWriteLock
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.ingestion.chunker import Chunker
from retriever.ingestion.committer import Committer
from retriever.ingestion.ingester import Ingester
from retriever.ingestion.reembedding import Reembedding
from retriever.ingestion.upload_intake import Ingestion, UploadIntake
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.lifecycle import Lifecycle
from retriever.loaders.registry import LOADERS, LoaderRegistry
from retriever.loaders.sandbox import SandboxedLoaders
from retriever.machine import warm_up_in_background
from retriever.reranking.factory import build_reranker, build_reranking
from retriever.retriever import Retriever
from retriever.search.question_vectors import QuestionEmbedder
from retriever.search.searcher import Searcher
from retriever.settings import RetrieverSettings
from retriever.store.attempts import Attempts
from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.jobs import Jobs
from retriever.store.orphans import Orphans
from retriever.store.store import Store
from retriever.work_thread import WorkThread


def build_retriever(
    settings: RetrieverSettings,
    data_dir: Path,
    embedder: Embedder | None = None,
    database: Database | None = None,
    tracer: Tracer | None = None,
) -> Retriever:
    """Build a retriever that is not started yet. Loading the model takes seconds.

    ``data_dir`` belongs to one retriever process alone. ``embedder`` and ``database`` replace those that the settings
    name. ``tracer`` records the embedding of queries. Raises ConfigError, StorageFull, or Unavailable if an embedding
    endpoint does not answer.
    """
    embedder = embedder or build_embedder(settings.embedder)
    reranker = build_reranker(settings.reranker)
    database = database or Database(data_dir / "store.sqlite3", settings.max_database_bytes)
    orphans = Orphans()
    store = Store(database, Documents(orphans), Chunks(), Jobs(), orphans)
    chunker = Chunker(embedder.tokenizer, embedder.max_tokens, settings.chunks)
    preparer = ChunkPreparer(chunker, embedder)
    fingerprint = preparer.fingerprint
    files = IndexFiles(data_dir / "indexes", fingerprint)
    wake_ingestion = threading.Event()
    builder = IndexBuilder(store, files, embedder.dimension, settings.index)
    rebuilder = Rebuilder(builder, wake_ingestion)
    catalog = IndexCatalog(store, files, builder, rebuilder)
    lexical = LexicalCatalog(store, data_dir / "lexical", fingerprint)
    replacement_lock = ReadWriteLock()
    questions = QuestionEmbedder(embedder, tracer or NoOpTracer())
    searcher = Searcher(store, catalog, lexical, questions, replacement_lock, settings.search)
    graph = build_graph(settings.graph, settings.pace, store, searcher, embedder)
    on_change = graph.changed if graph else None
    committer = Committer(store, catalog, lexical, replacement_lock, fingerprint, on_change)
    ingester = Ingester(store, preparer, catalog, committer, settings.pace)
    sandboxed = SandboxedLoaders(settings.loaders)
    loaders = LoaderRegistry({**LOADERS, **sandboxed.loaders})
    ingest_thread = WorkThread(
        "ingestion",
        ingester.ingest_next_group,
        settings.pace,
        warm_up=partial(warm_up_in_background, partial(embedder.embed_query, "warm up")),
        wake=wake_ingestion,
    )
    # Different threads acquire and release it.
    data_lock = FileLock(data_dir / "retriever.lock", thread_local=False)
    intake = UploadIntake(store, loaders, committer, settings.ingest)
    ingestion = Ingestion(intake, ingester, ingest_thread, committer.counts)
    return Retriever(
        store=store,
        searcher=graph.searcher if graph else searcher,
        reranker=reranker,
        reranking=build_reranking(settings.reranker, reranker.scores),
        embedder=embedder,
        ingestion=ingestion,
        graph=graph,
        lifecycle=Lifecycle(
            store,
            preparer,
            catalog,
            lexical,
            Reembedding(store, preparer, Attempts("document"), settings.pace.group_bytes),
            ingestion,
            graph,
            sandboxed,
            data_lock,
        ),
    )
