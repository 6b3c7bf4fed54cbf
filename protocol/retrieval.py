"""Search requests, and the stages of their results."""

import msgspec

from protocol.filters import Attributes, Filter


class SearchRequest(msgspec.Struct, frozen=True):
    """A search for the ``top_k`` chunks of a tenant's collection nearest to ``query`` that pass ``filters``.

    With ``check_keys``, filtering on an attribute that no document has is an error. Without, the results list such
    attributes: a shard cannot refuse one, because it does not know the other shards' documents. ``traceparent`` is the
    caller's span in W3C format, if there is one.
    """

    tenant: str
    collection: str
    query: str
    top_k: int
    filters: Filter | None = None
    check_keys: bool = True
    traceparent: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a document: the unit that is embedded, found, put into a prompt and cached.

    ``content_hash`` is the hash of ``text`` alone. Equal texts share it, so it can key a KV cache. ``index`` counts the
    chunks of one document from 0.
    """

    chunk_id: str
    document_id: str
    filename: str
    index: int
    text: str
    content_hash: str
    attributes: Attributes = {}


class CandidateSet(msgspec.Struct, frozen=True):
    """The best chunks after ``stage`` (from 1) out of ``of`` stages; ``docs`` and ``scores`` are ordered best first.

    Scores are inner products of unit vectors: cosines in [-1, 1]. Only the last set of a search is ``final``.
    ``elapsed_ms`` counts from the start of the search. ``unknown_keys`` are filter attributes that no document has.
    ``missing_shards`` did not return all their results, and may have had better chunks.
    """

    stage: int
    of: int
    docs: tuple[Chunk, ...]
    scores: tuple[float, ...]
    final: bool
    elapsed_ms: float
    unknown_keys: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
