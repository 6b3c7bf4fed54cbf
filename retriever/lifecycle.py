"""Opening and closing a retriever's parts in order."""

from pathlib import Path

from filelock import FileLock, Timeout

from protocol.errors import Conflict
from retriever.graph.retriever_graph import RetrieverGraph
from retriever.index.catalog import IndexCatalog
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.ingestion.reembedding import Reembedding
from retriever.ingestion.upload_intake import Ingestion
from retriever.lexical.lexical_catalog import LexicalCatalog
from retriever.loaders.sandbox import SandboxedLoaders
from retriever.store.store import Store

_LOCK_TIMEOUT_S = 20.0


class Lifecycle:
    """Opens and closes the parts of one retriever. Both calls block for seconds.

    ``data_lock`` lies in the data folder. One process at a time holds it, because two would assign the same chunk ids.
    """

    def __init__(
        self,
        store: Store,
        preparer: ChunkPreparer,
        catalog: IndexCatalog,
        lexical: LexicalCatalog,
        reembedding: Reembedding,
        ingestion: Ingestion,
        graph: RetrieverGraph | None,
        loaders: SandboxedLoaders,
        data_lock: FileLock,
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._catalog = catalog
        self._lexical = lexical
        self._reembedding = reembedding
        self._ingestion = ingestion
        self._graph = graph
        self._loaders = loaders
        self._data_lock = data_lock

    @property
    def data_dir(self) -> Path:
        """The folder that the retriever owns."""
        return Path(self._data_lock.lock_file).parent

    def open(self) -> None:
        """Lock the data folder, re-embed outdated documents, load the indexes and start ingestion.

        Raises StorageFull, what the embedder raises, and Conflict if another retriever holds the folder for 20 s more.
        """
        # During a replacement the predecessor needs time to shut down.
        try:
            self._data_lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout as error:
            raise Conflict(f"another retriever is using {self.data_dir}") from error
        self._lexical.sweep()
        with self._store.database.read() as transaction:
            self._preparer.start_ids_after(self._store.chunks.last_id(transaction))
        self._reembedding.run()
        self._catalog.open()
        self._lexical.open()
        if self._graph is not None:
            self._graph.open()
        self._ingestion.ingester.open()
        self._ingestion.thread.start()

    def close(self) -> None:
        """Finish the current group, save the indexes and release the folder. Queued documents stay queued."""
        self._ingestion.thread.close()
        self._ingestion.ingester.close()
        if self._graph is not None:
            self._graph.close()
        self._loaders.close()
        self._catalog.close()
        self._store.database.close()
        self._data_lock.release()
