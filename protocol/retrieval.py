"""Search requests, the stages of their results, and texts to embed."""

from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from protocol.filters import Attributes, Filter
from protocol.graph import GraphMode, Subgraph


class StoreRevision(msgspec.Struct, frozen=True):
    """The state of a store of documents right after the deletion with this ``number``; 0 is before the first one.

    Revisions order searches and deletions, which clocks cannot.

    A store numbers the contents that it loses, in the transaction that loses them, and uses no number twice. ``store``
    is its name, which it keeps as long as its data. One that is made anew has another name. Revisions of two stores
    have no order.
    """

    store: str
    number: int


Revisions: TypeAlias = tuple[StoreRevision, ...]
"""One of each store that documents were read from."""


class SearchKind(StrEnum):
    """How chunks are found: ``dense`` by the nearness of embeddings, ``sparse`` by words (BM25), ``hybrid`` by both."""

    DENSE = "dense"
    SPARSE = "sparse"
    HYBRID = "hybrid"


class RerankFailure(StrEnum):
    """Why a search's results are not reranked.

    The reranker did not answer in time (``timeout``), cannot be reached or is overloaded (``unavailable``), does not
    accept the request (``refused``), or answered nonsense (``invalid``). ``paused``: it was not asked, because it has
    just failed.
    """

    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    INVALID = "invalid"
    PAUSED = "paused"


class Reranking(msgspec.Struct, frozen=True):
    """The outcome of a search's reranking: the reranker had ``candidates`` chunks, and took ``elapsed_ms``.

    If it ``failed``, ``reason`` says why, and the results are those of the search.
    """

    status: Literal["done", "failed"]
    reason: RerankFailure | None
    candidates: int
    elapsed_ms: float


class SearchRequest(msgspec.Struct, frozen=True):
    """A search for the ``top_k`` best chunks of a tenant's collection for ``query`` that pass ``filters``.

    ``context`` is what was asked before in a conversation: a follow-up such as "And in Python?" names its subject only
    there. ``search`` is by default what the collection is set to. With ``fuse`` off, a hybrid search returns the best
    chunks of both its rankings: a shard cannot fuse them, because ranks count over all shards.

    With ``check_keys``, filtering on an attribute that no document has is an error. Without, the results list such
    attributes: a shard cannot refuse one, because it does not know the other shards' documents.

    ``rerank`` says whether results are reranked; by default, they are if a reranker is configured. ``candidates`` is
    how many chunks a set has for a reranker, if that is more than ``top_k``. ``mode`` says how the collection's graph
    is used. ``traceparent`` is the caller's span in W3C format, if there is one.
    """

    tenant: str
    collection: str
    query: str
    top_k: int
    context: str = ""
    filters: Filter | None = None
    search: SearchKind | None = None
    fuse: bool = True
    check_keys: bool = True
    rerank: bool | None = None
    candidates: int = 0
    mode: GraphMode = GraphMode.NAIVE
    traceparent: str | None = None

    @property
    def in_context(self) -> str:
        """The query after its context."""
        return f"{self.context}\n{self.query}" if self.context else self.query

    def asking(self, question: str) -> "SearchRequest":
        """The same search for another question, which needs no context."""
        return msgspec.structs.replace(self, query=question, context="")

    @property
    def shown(self) -> int:
        """How many chunks a set of candidates has."""
        return max(self.top_k, self.candidates)


class Lines(msgspec.Struct, frozen=True):
    """A range of lines of a document's text, counted from 1. Both ends belong to it."""

    first: int
    last: int


class Pages(msgspec.Struct, frozen=True):
    """A range of pages of a document, counted from 1. Both ends belong to it."""

    first: int
    last: int


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a document: the unit that is embedded, found, put into a prompt and cached.

    ``content_hash`` is the hash of ``text`` alone. Equal texts share it, so it can key a KV cache. ``index`` counts the
    chunks of one document from 0. ``title`` is the document's, if it has one. ``lines`` are where the chunk lies in the
    document's text; None for chunks that were stored before their lines were. ``pages`` are None unless the document
    has pages.
    """

    chunk_id: str
    document_id: str
    filename: str
    index: int
    text: str
    content_hash: str
    attributes: Attributes = {}
    title: str | None = None
    lines: Lines | None = None
    pages: Pages | None = None


class DocumentChunks(msgspec.Struct, frozen=True):
    """A document's chunks in order, as its store had them at a ``revision``."""

    chunks: tuple[Chunk, ...]
    revision: StoreRevision


class CandidateSet(msgspec.Struct, frozen=True):
    """The best chunks after ``stage`` (from 1) out of ``of`` stages; ``docs`` and ``scores`` are ordered best first.

    ``scores`` are those that order the documents. In a dense search, they are inner products of unit vectors: cosines
    in [-1, 1]. In a sparse one, they are BM25 scores. In a hybrid one, they are weighted sums of both, and
    ``dense_scores`` and ``sparse_scores`` are those of both rankings. In a reranked set, ``scores`` are the reranker's,
    and those of both rankings are there for every kind of search. Documents that the reranker did not score follow
    in the search's order, with the lowest of its scores.

    Only the last set of a search is ``final``. The first set of a hybrid search has been found by words alone, and
    counts all that follows as one stage, which is not planned yet. ``elapsed_ms`` counts from the start of the search.
    ``unknown_keys`` are filter attributes that no document has. ``missing_shards`` did not return all their results,
    and may have had better chunks. ``reranking`` is the outcome, if the final documents were to be reranked. In a
    graph ``mode``, the final scores are the graph's, about 1 for the best chunk, and ``graph`` is what led to
    them; those of both rankings are there, too. The stores that were searched had all of this at ``revisions``.
    """

    stage: int
    of: int
    docs: tuple[Chunk, ...]
    scores: tuple[float, ...]
    final: bool
    elapsed_ms: float
    search: SearchKind = SearchKind.DENSE
    dense_scores: tuple[float | None, ...] = ()
    sparse_scores: tuple[float | None, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
    reranking: Reranking | None = None
    mode: GraphMode = GraphMode.NAIVE
    graph: Subgraph | None = None
    revisions: Revisions = ()

    @property
    def reranked(self) -> bool:
        """Whether the scores are a reranker's."""
        return self.reranking is not None and self.reranking.status == "done"

    def ranking(self, kind: SearchKind) -> tuple[float | None, ...]:
        """The documents' scores in the dense or the sparse ranking; None if a document is not among its best."""
        if self.search is not SearchKind.HYBRID and not self.reranked and self.graph is None:
            return self.scores if kind is self.search else (None,) * len(self.docs)
        return self.dense_scores if kind is SearchKind.DENSE else self.sparse_scores


TextKind = Literal["document", "query"]
"""What a text is. Some models embed questions differently from what answers them."""


class EmbeddingRequest(msgspec.Struct, frozen=True):
    """Texts to embed as one kind of text with the embedder ``model``, into vectors of ``dimensions`` if that is set."""

    texts: tuple[str, ...]
    model: str
    kind: TextKind = "document"
    dimensions: int | None = None


class Embeddings(msgspec.Struct, frozen=True):
    """The unit vectors of texts, in order, each as little-endian float32. ``tokens`` counts the tokens of all texts."""

    vectors: tuple[bytes, ...]
    tokens: int
