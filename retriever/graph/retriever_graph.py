"""The graph of one retriever: opened, kept up to date and closed with it."""

from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.graph_indexer import GraphIndexer
from retriever.graph.graph_viewer import GraphViewer
from retriever.work_thread import WorkThread


class RetrieverGraph:
    """Opens and closes the graphs of all collections, and lets a thread read new documents into them.

    ``viewer`` shows what is in them.
    """

    def __init__(
        self,
        catalog: GraphCatalog,
        indexer: GraphIndexer,
        thread: WorkThread,
        viewer: GraphViewer,
    ) -> None:
        self.viewer = viewer
        self._catalog = catalog
        self._indexer = indexer
        self._thread = thread

    def open(self) -> None:
        """Load the graphs, and start to read what they do not have yet."""
        self._catalog.open()
        self._thread.start()

    def changed(self, collection: int) -> None:
        """Signal that a collection's documents have come or gone. Thread-safe."""
        self._indexer.changed(collection)
        self._thread.wake()

    def wait(self) -> None:
        """Return when the graphs have all documents that are stored at this moment, or this is closed."""
        self._thread.wait()

    def close(self) -> None:
        """Stop, after the group of chunks that is being stored. The rest is read after the next start."""
        self._thread.stop()
        # The thread may wait for a group that takes minutes to read.
        self._indexer.close()
        self._thread.close()
