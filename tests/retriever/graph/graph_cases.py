"""A store with documents and their graph, without a retriever around it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from capitals import Capitals

from protocol.graph import Triplet
from retriever.embedding.hashing import HashingEmbedder
from retriever.graph.extractors.base import Extractor
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.graph_indexer import GraphIndexer, GroupReader
from retriever.ingestion.chunk_preparer import ChunkPreparer
from retriever.ingestion.chunker import Chunker
from retriever.settings import ChunkSettings
from retriever.store.chunks import Chunks
from retriever.store.database import Database
from retriever.store.documents import Documents
from retriever.store.facts import Facts
from retriever.store.incoming import IncomingDocument, SourceText
from retriever.store.jobs import Jobs
from retriever.store.orphans import Orphans
from retriever.store.store import Store

TENANT = "acme"
TABLES = ("entities", "statements", "mentions", "relations", "read_chunks")


class GraphStore:
    """Documents of one tenant, and an indexer that reads them when asked to."""

    def __init__(self, folder: Path, extractor: Extractor | None = None) -> None:
        self.database = Database(folder / "store.sqlite3")
        orphans = Orphans()
        self.documents, self.chunks = Documents(orphans), Chunks()
        self.store = Store(self.database, self.documents, self.chunks, Jobs(), orphans)
        self.embedder = HashingEmbedder()
        self.preparer = ChunkPreparer(Chunker(self.embedder.tokenizer, 510, ChunkSettings()), self.embedder)
        with self.database.read() as transaction:
            self.preparer.start_ids_after(self.chunks.last_id(transaction))
        self.extractor = extractor or Capitals()
        self.facts = Facts(self.extractor.fingerprint)
        self.catalog = GraphCatalog(self.database, self.facts, self.embedder.dimension)
        self.groups = GroupReader(self.database, self.facts, self.extractor)
        self.indexer = GraphIndexer(self.store, self.facts, self.groups, self.embedder, self.catalog)

    def put(
        self,
        document_id: str,
        text: str,
        collection: str = "c",
        tenant: str = TENANT,
        triplets: tuple[Triplet, ...] = (),
    ) -> None:
        (prepared,) = self.preparer.prepare([SourceText(text, None, triplets)])
        incoming = IncomingDocument(document_id, text, document_id, None, {}, triplets=triplets)
        with self.database.write() as transaction:
            key = self.documents.ensure_collection(transaction, tenant, collection)
            self.documents.put(transaction, key, incoming, prepared, "f")

    def delete(self, document_id: str, collection: str = "c") -> None:
        with self.database.write() as transaction:
            self.documents.delete(transaction, self.collection(collection), document_id)

    def read_all(self) -> None:
        while self.indexer.index_next():
            pass

    def collection(self, name: str = "c", tenant: str = TENANT) -> int:
        with self.database.read() as transaction:
            key = self.documents.collection(transaction, tenant, name)
        assert key is not None
        return key

    def names(self, collection: str = "c") -> set[str]:
        return set(self._column("SELECT name FROM entities WHERE collection = ?", self.collection(collection)))

    def relations(self) -> set[tuple[str, str, str]]:
        with self.database.read() as transaction:
            ids = [row[0] for row in transaction.execute("SELECT id FROM relations")]
            return {tuple(found[:3]) for found in self.facts.relations(transaction, ids).values()}

    def rows(self) -> dict[str, int]:
        """How many rows each table of the graph has."""
        return {table: self._column(f"SELECT count(*) FROM {table}")[0] for table in TABLES}

    def _column(self, sql: str, *values: object) -> list:
        with self.database.read() as transaction:
            return [row[0] for row in transaction.execute(sql, values)]


def failing(times: int, error: Exception) -> Callable[[Sequence[object]], None]:
    """A function that raises at its first calls."""
    left = [error] * times

    def fail(_: Sequence[object]) -> None:
        if left:
            raise left.pop()

    return fail
