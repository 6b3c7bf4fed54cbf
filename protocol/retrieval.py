"""Search requests, and the stages of their results."""

from enum import StrEnum

import msgspec

from protocol.filters import Attributes, Filter


class SearchKind(StrEnum):
    """How chunks are found: ``dense`` by the nearness of embeddings, ``sparse`` by words (BM25), ``hybrid`` by both."""

    DENSE = "dense"
    SPARSE = "sparse"
    HYBRID = "hybrid"


class SearchRequest(msgspec.Struct, frozen=True):
    """A search for the ``top_k`` best chunks of a tenant's collection for ``query`` that pass ``filters``.

    ``search`` is by default what the collection is set to. With ``fuse`` off, a hybrid search returns the best chunks
    of both its rankings: a shard cannot fuse them, because ranks count over all shards.

    With ``check_keys``, filtering on an attribute that no document has is an error. Without, the results list such
    attributes: a shard cannot refuse one, because it does not know the other shards' documents. ``traceparent`` is the
    caller's span in W3C format, if there is one.
    """

    tenant: str
    collection: str
    query: str
    top_k: int
    filters: Filter | None = None
    search: SearchKind | None = None
    fuse: bool = True
    check_keys: bool = True
    traceparent: str | None = None


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


class CandidateSet(msgspec.Struct, frozen=True):
    """The best chunks after ``stage`` (from 1) out of ``of`` stages; ``docs`` and ``scores`` are ordered best first.

    ``scores`` are those that order the documents. In a dense search, they are inner products of unit vectors: cosines
    in [-1, 1]. In a sparse one, they are BM25 scores. In a hybrid one, they are weighted sums of both, and
    ``dense_scores`` and ``sparse_scores`` are those of both rankings.

    Only the last set of a search is ``final``. The first set of a hybrid search has been found by words alone, and
    counts all that follows as one stage, which is not planned yet. ``elapsed_ms`` counts from the start of the search.
    ``unknown_keys`` are filter attributes that no document has. ``missing_shards`` did not return all their results,
    and may have had better chunks.
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

    def ranking(self, kind: SearchKind) -> tuple[float | None, ...]:
        """The documents' scores in the dense or the sparse ranking; None if a document is not among its best."""
        if self.search is not SearchKind.HYBRID:
            return self.scores if kind is self.search else (None,) * len(self.docs)
        return self.dense_scores if kind is SearchKind.DENSE else self.sparse_scores
