"""Opening and closing a retriever's parts in order."""

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Lifecycle:
    """Opens and closes the parts of one retriever. Both calls block for seconds.

    ``data_lock`` lies in the data folder. One process at a time holds it, because two would assign the same chunk ids.
    """

    store: Store
    preparer: ChunkPreparer
    catalog: IndexCatalog
    lexical: LexicalCatalog
    reembedding: Reembedding
    ingestion: Ingestion
    graph: RetrieverGraph | None
    loaders: SandboxedLoaders
    data_lock: FileLock

    @property
    def data_dir(self) -> Path:
        """The folder that the retriever owns."""
        return Path(self.data_lock.lock_file).parent

    def open(self) -> None:
        """Lock the data folder, re-embed outdated documents, load the indexes and start ingestion.

        Raises StorageFull, what the embedder raises, and Conflict if another retriever holds the folder for 20 s more.
        """
        # During a replacement the predecessor needs time to shut down.
        try:
            self.data_lock.acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout as error:
            raise Conflict(f"another retriever is using {self.data_dir}") from error
        self.lexical.sweep()
        with self.store.database.read() as transaction:
            self.preparer.start_ids_after(self.store.chunks.last_id(transaction))
        self.reembedding.run()
        self.catalog.open()
        self.lexical.open()
        if self.graph is not None:
            self.graph.open()
        self.ingestion.ingester.open()
        self.ingestion.thread.start()

    def close(self) -> None:
        """Finish the current group, save the indexes and release the folder. Queued documents stay queued."""
        self.ingestion.thread.close()
        self.ingestion.ingester.close()
        if self.graph is not None:
            self.graph.close()
        self.loaders.close()
        self.catalog.close()
        self.store.database.close()
        self.data_lock.release()
