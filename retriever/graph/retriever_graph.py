"""The graph of one retriever: built, opened, kept up to date and closed with it."""

import threading
from dataclasses import dataclass

from retriever.embedding.base import Embedder
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.graph_indexer import GraphIndexer, GroupReader
from retriever.graph.graph_searcher import GraphSearcher
from retriever.graph.graph_viewer import GraphViewer
from retriever.graph.subgraph_reader import SubgraphReader
from retriever.machine import lower_priority
from retriever.search.searcher import Searcher
from retriever.settings import GraphSettings, Pace
from retriever.store.facts import Facts
from retriever.store.store import Store
from retriever.work_thread import WorkThread


@dataclass(frozen=True)
class RetrieverGraph:
    """Opens and closes the graphs of all collections, and lets a thread read new documents into them.

    ``searcher`` searches them, and ``viewer`` shows what is in them.
    """

    catalog: GraphCatalog
    indexer: GraphIndexer
    thread: WorkThread
    searcher: GraphSearcher
    viewer: GraphViewer

    def open(self) -> None:
        """Load the graphs, and start to read what they do not have yet."""
        self.catalog.open()
        self.thread.start()

    def changed(self, collection: int) -> None:
        """Signal that a collection's documents have come or gone. Thread-safe."""
        self.indexer.changed(collection)
        self.thread.wake()

    def wait(self) -> None:
        """Return when the graphs have all documents that are stored at this moment, or this is closed."""
        self.thread.wait()

    def close(self) -> None:
        """Stop, after the group of chunks that is being stored. The rest is read after the next start."""
        self.thread.stop()
        # The thread may wait for a group that takes minutes to read.
        self.indexer.close()
        self.thread.close()


def build_graph(
    settings: GraphSettings, pace: Pace, store: Store, searcher: Searcher, embedder: Embedder
) -> RetrieverGraph | None:
    """Build the graph around a ``searcher``; None if there is to be none."""
    if settings.kind == "none":
        return None
    # spaCy takes two seconds and 100 MiB, which only a graph needs.
    from retriever.graph.extractors.factory import build_extractor
    from retriever.graph.extractors.phrases import Phrases

    phrases = Phrases()
    extractor = build_extractor(settings, phrases)
    facts = Facts(extractor.fingerprint)
    catalog = GraphCatalog(store.database, facts, embedder.dimension)
    indexer = GraphIndexer(store, facts, GroupReader(store.database, facts, extractor), embedder, catalog)
    thread = WorkThread("graph", indexer.index_next, pace, lower_priority, threading.Event())
    reader = SubgraphReader(store.chunks, facts, settings)
    graph_searcher = GraphSearcher(store, facts, searcher, catalog, phrases, embedder, reader)
    return RetrieverGraph(catalog, indexer, thread, graph_searcher, GraphViewer(store, facts, catalog))
