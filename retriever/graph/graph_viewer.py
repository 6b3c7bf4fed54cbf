"""Views of a collection's graph: a bounded part of it, for people to look at."""

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from protocol.documents import CollectionInfo
from protocol.errors import NoGraph, UnknownEntity
from protocol.graph import GraphRequest, GraphState, GraphView, ViewedEntity, ViewedRelation
from retriever.graph.empty_graph import no_graph_yet
from retriever.graph.graph_catalog import GraphCatalog
from retriever.graph.names import name_key
from retriever.graph.walk import Walk, Walked
from retriever.store.chunks import Chunks
from retriever.store.database import Transaction
from retriever.store.documents import Documents
from retriever.store.facts import Facts
from retriever.store.graph_outline import GraphOutline


class GraphViewer:
    """Reads views from the store. So they have what is read so far, and nothing of a deleted document.

    ``fingerprint`` is that of the extractor. Each call runs in the given transaction.
    """

    def __init__(
        self,
        documents: Documents,
        chunks: Chunks,
        facts: Facts,
        outline: GraphOutline,
        catalog: GraphCatalog,
        fingerprint: str,
    ) -> None:
        self._documents = documents
        self._chunks = chunks
        self._facts = facts
        self._outline = outline
        self._catalog = catalog
        self._fingerprint = fingerprint

    def view(self, transaction: Transaction, request: GraphRequest) -> GraphView:
        """Return a part of a collection's graph. Raises UnknownCollection, NoGraph or UnknownEntity."""
        collection = self._documents.collection(transaction, request.tenant, request.collection)
        if collection is None:
            raise NoGraph(f"{request.collection!r} has no documents", param="collection")
        size = self._outline.size(transaction, collection)
        unread = self._facts.unread_count(transaction, self._fingerprint, collection)
        unreadable = self._facts.unreadable_count(transaction, self._fingerprint, collection)
        if not size.statements:
            raise NoGraph(no_graph_yet(request.collection, unread, unreadable), param="collection")
        walk = Walk(partial(self._outline.edges, transaction), request.max_nodes, request.max_relations)
        if request.entities:
            walked = walk.from_roots(self._asked_for(transaction, collection, request), request.max_depth)
        else:
            walked = walk.from_roots(self._outline.most_mentioned(transaction, collection, request.max_nodes), 0)
            walked = walked._replace(truncated=walked.truncated or size.entities > len(walked.depths))
        names = self._facts.names(transaction, list(walked.depths))
        return GraphView(
            self._entities(transaction, walked, names),
            self._relations(transaction, collection, walked, names),
            walked.truncated,
            size,
            unread,
            unreadable,
        )

    def with_states(
        self, transaction: Transaction, tenant: str, infos: Sequence[CollectionInfo]
    ) -> list[CollectionInfo]:
        """Return these collections of a tenant with the states of their graphs."""
        return [replace(info, graph=self._state(transaction, tenant, info.name)) for info in infos]

    def unread_chunks(self, transaction: Transaction) -> int:
        """Return how many chunks of all collections are not in their graphs yet."""
        return self._outline.unread(transaction, self._fingerprint)

    def unreadable_chunks(self, transaction: Transaction) -> int:
        """Return how many chunks of all collections could not be read, so their graphs have nothing of them."""
        return self._outline.unreadable(transaction, self._fingerprint)

    def _state(self, transaction: Transaction, tenant: str, name: str) -> GraphState:
        collection = self._documents.collection(transaction, tenant, name)
        if collection is None:
            return GraphState.NONE
        if self._catalog.get(collection) is not None:
            return GraphState.READY
        unread = self._facts.unread_count(transaction, self._fingerprint, collection)
        return GraphState.READING if unread else GraphState.NONE

    def _asked_for(self, transaction: Transaction, collection: int, request: GraphRequest) -> list[int]:
        """The entities with these names. Raises UnknownEntity."""
        keys = {name: name_key(name) for name in request.entities}
        known = self._facts.known(transaction, collection, filter(None, keys.values()))
        for name, key in keys.items():
            if key not in known:
                raise UnknownEntity(f"no document of {request.collection!r} names {name!r}", param="label")
        return [known[key] for key in keys.values()]

    def _entities(self, transaction: Transaction, walked: Walked, names: Mapping[int, str]) -> tuple[ViewedEntity, ...]:
        mentions = self._outline.mentions(transaction, list(walked.depths))
        return tuple(ViewedEntity(names[id_], mentions[id_], depth) for id_, depth in walked.depths.items())

    def _relations(
        self, transaction: Transaction, collection: int, walked: Walked, names: Mapping[int, str]
    ) -> tuple[ViewedRelation, ...]:
        stating = self._chunks.resolve(transaction, collection, sorted({edge.chunk for edge in walked.edges}))
        return tuple(
            ViewedRelation(
                names[edge.head],
                edge.relation,
                names[edge.tail],
                stating[edge.chunk].document_id,
                stating[edge.chunk].index,
            )
            for edge in walked.edges
        )
