"""What is asked of the retriever, and the stages in which it answers."""

import msgspec

from protocol.filters import Attributes, Filter


class SearchRequest(msgspec.Struct, frozen=True):
    """The ``top_k`` chunks of a tenant's collection nearest to ``query`` among those that pass ``filters``.

    With ``check_keys`` an attribute of the filters that no document has is refused; without, the sets name it. A shard
    cannot refuse it, for it does not know the documents of the others. ``traceparent`` is the caller's span, if it has
    one, as W3C spells it.
    """

    tenant: str
    collection: str
    query: str
    top_k: int
    filters: Filter | None = None
    check_keys: bool = True
    traceparent: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a document, the unit that is embedded, found, put into a prompt and cached.

    ``content_hash`` is the hash of ``text`` alone: equal texts share it wherever they stand, so it can key a KV cache.
    ``index`` counts the chunks of one document from 0.
    """

    chunk_id: str
    document_id: str
    filename: str
    index: int
    text: str
    content_hash: str
    attributes: Attributes = {}


class CandidateSet(msgspec.Struct, frozen=True):
    """The best chunks known after ``stage`` (from 1) ``of`` so many; ``docs`` and ``scores`` run best first.

    Scores are inner products of unit vectors, so cosines in [-1, 1]. Exactly the last set of a search is ``final``.
    ``elapsed_ms`` counts from the start of the search. ``unknown_keys`` are the attributes of the filters that no
    document has; ``missing_shards`` are those that did not give all they have, and may have had better chunks.
    """

    stage: int
    of: int
    docs: tuple[Chunk, ...]
    scores: tuple[float, ...]
    final: bool
    elapsed_ms: float
    unknown_keys: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
