"""The graphs of all collections in memory, and why a collection has none."""

from retriever.graph.knowledge_graph import KnowledgeGraph
from retriever.store.database import Database, Transaction
from retriever.store.facts import Facts


class GraphCatalog:
    """The graphs by collection key. Any thread may call ``get``; one thread at a time changes the graphs.

    A graph in memory lags behind the store. Its entities may be gone, so results are read from the store.
    """

    def __init__(self, database: Database, facts: Facts, dimension: int) -> None:
        self._database = database
        self._facts = facts
        self._dimension = dimension
        self._graphs: dict[int, KnowledgeGraph] = {}

    def get(self, collection: int) -> KnowledgeGraph | None:
        """Return a collection's graph, or None if it has none yet."""
        return self._graphs.get(collection)

    def why_none(self, transaction: Transaction, collection: int, name: str) -> str:
        """Return a sentence for people on why a collection with documents has no graph."""
        if unread := self._facts.unread_count(transaction, collection):
            reason = f"{unread} chunks are still to be read"
        elif unreadable := self._facts.unreadable_count(transaction, collection):
            reason = f"{unreadable} chunks could not be read, and no other names an entity"
        else:
            reason = "no document names an entity"
        return f"{name!r} has no graph yet: {reason}"

    def open(self) -> None:
        """Read the graphs of all collections."""
        with self._database.read() as transaction:
            collections = self._facts.collections(transaction)
        for collection in collections:
            self.refresh(collection)

    def refresh(self, collection: int) -> None:
        """Read a collection's graph again."""
        with self._database.read() as transaction:
            arrays = self._facts.arrays(transaction, collection, self._dimension)
        if len(arrays.statements):
            self._graphs[collection] = KnowledgeGraph(arrays)
        else:
            self._graphs.pop(collection, None)
