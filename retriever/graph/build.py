"""Build what a retriever with a graph has in addition."""

import threading
from typing import NamedTuple

from retriever.embedding.base import Embedder
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.graph_indexer import GraphIndexer
from retriever.graph.graph_searcher import GraphSearcher
from retriever.graph.graph_viewer import GraphViewer
from retriever.graph.group_reader import GroupReader
from retriever.graph.retriever_graph import RetrieverGraph
from retriever.graph.subgraph_reader import SubgraphReader
from retriever.pace import Pace
from retriever.search.searcher import Searcher
from retriever.settings import GraphSettings
from retriever.store.facts import Facts
from retriever.store.graph_outline import GraphOutline
from retriever.store.store import Store
from retriever.thread_priorities import lower_priority
from retriever.work_thread import WorkThread


class GraphParts(NamedTuple):
    """The graph of a retriever, and the searcher that uses it."""

    graph: RetrieverGraph
    searcher: GraphSearcher


def build_graph(
    settings: GraphSettings,
    pace: Pace,
    store: Store,
    searcher: Searcher,
    embedder: Embedder,
) -> GraphParts | None:
    """Build the graph around a ``searcher``; None if there is to be none."""
    if settings.kind == "none":
        return None
    # spaCy takes two seconds and 100 MiB, which only a graph needs.
    from retriever.graph.extractors.factory import build_extractor
    from retriever.graph.extractors.phrases import Phrases

    phrases, facts = Phrases(), Facts()
    database, documents, chunks = store.database, store.documents, store.chunks
    extractor = build_extractor(settings, phrases)
    reader = SubgraphReader(chunks, facts, settings)
    catalog = GraphCatalog(database, facts, embedder.dimension)
    groups = GroupReader(database, facts, extractor)
    indexer = GraphIndexer(database, chunks, facts, groups, extractor.fingerprint, embedder, catalog)
    thread = WorkThread("graph", indexer.index_next, pace, lower_priority, threading.Event())
    viewer = GraphViewer(documents, chunks, facts, GraphOutline(), catalog, extractor.fingerprint)
    return GraphParts(
        RetrieverGraph(catalog, indexer, thread, viewer),
        GraphSearcher(store, facts, searcher, catalog, phrases, extractor.fingerprint, embedder, reader),
    )
