"""The events of one query on the wire. Each has ``type``, ``sequence_number``, ``query_id``.

Exactly one of the last three, which are terminal, ends a stream. An answer that reaches the caller's ``max_tokens`` is
complete, with ``finish_reason: "length"``.
"""

from typing import Literal

import msgspec

from gateway.wire.errors import ErrorBody
from gateway.wire.reply import Citation, Reply, Rewriting, ScoredToken, SearchResult, Timings, Usage
from gateway.wire.reuse import FactsAttention, ReuseClass
from protocol.graph import Subgraph
from protocol.plans import Fallback
from protocol.retrieval import Reranking


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events. ``sequence_number`` counts a query's events from 0."""

    sequence_number: int
    query_id: str


class QueryCreated(Event, frozen=True, kw_only=True, tag="query.created"):
    """The query was accepted. ``created_at`` is in seconds since the epoch."""

    model: str
    created_at: int


class RetrievalStage(Event, frozen=True, kw_only=True, tag="retrieval.stage"):
    """The best documents after one stage of the search. Sent on request."""

    stage: int
    elapsed_ms: float
    doc_ids: tuple[str, ...]
    final: bool


class RetrievalCompleted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="retrieval.completed"):
    """The final documents, best first.

    If results are missing, ``partial`` is true and ``missing_shards`` names the shards. Otherwise both are absent.
    ``reranking`` is as in the reply, and absent if the results were not to be reranked. ``graph`` is as in the
    reply, and absent without a graph mode. ``rewriting`` is that of a follow-up, and absent if it was not to be
    rewritten.
    """

    results: tuple[SearchResult, ...]
    elapsed_ms: float
    partial: bool = False
    missing_shards: tuple[str, ...] = ()
    reranking: Reranking | None = None
    graph: Subgraph | None = None
    rewriting: Rewriting | None = None


class CacheResolved(Event, frozen=True, kw_only=True, tag="cache.resolved"):
    """Sources of the prompt's tokens, as in the reply.

    ``hit_docs`` counts fully cached documents, ``tiers`` the loaded tokens.
    """

    prompt_tokens: int
    cached_tokens: int
    composed_tokens: int
    recomputed_tokens: int
    reuse: ReuseClass
    fallback: Fallback | None
    facts_attention: FactsAttention | None
    facts_fallback: Fallback | None
    hit_docs: int
    tiers: dict[str, int]


class OutputTextDelta(Event, frozen=True, kw_only=True, tag="output_text.delta"):
    """New text of the answer. Never empty. ``logprobs``, on request, are the tokens since the last delta."""

    delta: str
    logprobs: tuple[ScoredToken, ...] | msgspec.UnsetType = msgspec.UNSET


class AnnotationAdded(Event, frozen=True, kw_only=True, tag="output_text.annotation.added"):
    """A document in the answer's prompt, one event for each, before any text."""

    annotation: Citation


class QueryCompleted(Event, frozen=True, kw_only=True, tag="query.completed"):
    """The end of an answered query. ``response`` equals the JSON reply."""

    response: Reply
    usage: Usage
    timings: Timings


class QueryIncomplete(Event, frozen=True, kw_only=True, tag="query.incomplete"):
    """The end of a query whose time was up after text was sent."""

    reason: Literal["timeout"]


class QueryFailed(Event, frozen=True, kw_only=True, tag="query.failed"):
    """The end of a query that failed after its response had started."""

    error: ErrorBody


QUERY_EVENTS = tuple(Event.__subclasses__())
