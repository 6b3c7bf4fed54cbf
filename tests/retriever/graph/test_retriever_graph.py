"""A retriever's graph as it is opened and closed."""

import threading
from concurrent.futures import ThreadPoolExecutor

from capitals import Capitals
from graph_cases import GraphStore
from structlog.testing import capture_logs

from protocol.errors import Unavailable
from retriever.graph.graph_viewer import GraphViewer
from retriever.graph.retriever_graph import RetrieverGraph
from retriever.settings import Pace
from retriever.work_thread import WorkThread


class Slow(Capitals):
    """Reads until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.closed = threading.Event(), threading.Event()

    def extract(self, sources):
        self.reading.set()
        self.closed.wait()
        raise Unavailable("closed")

    def close(self) -> None:
        self.closed.set()


def graph_of(store: GraphStore) -> RetrieverGraph:
    viewer = GraphViewer(store.store, store.facts, store.catalog)
    thread = WorkThread("graph", store.indexer.index_next, Pace(), lambda: None, threading.Event())
    return RetrieverGraph(store.catalog, store.indexer, thread, None, viewer)


def test_closing_breaks_off_a_group_that_is_being_read(tmp_path):
    slow = Slow()
    store = GraphStore(tmp_path, slow)
    store.put("a", "Titanic was made by Cameron.")
    graph = graph_of(store)
    with ThreadPoolExecutor(1) as pool, capture_logs() as logs:
        graph.open()
        assert slow.reading.wait(20)
        pool.submit(graph.close).result(20)
    assert logs == []
    assert store.rows()["read_chunks"] == 0
