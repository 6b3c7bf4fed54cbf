"""The events of one query, as they go over the wire: ``type``, ``sequence_number`` and ``query_id`` in each.

    query.created            first
    retrieval.stage          one a stage, where asked for
    retrieval.completed      the documents are final
    cache.resolved           the prompt is prefilled
    output_text.annotation.added   one a document that stands in the prompt, before the text that rests on it
    output_text.delta        new text
    query.completed          terminal: the reply, cut by ``max_tokens`` or not (``finish_reason`` says which)
    query.incomplete         terminal: text had left, then the query's time was up
    query.failed             terminal: anything else that went wrong after the response had started

Exactly one terminal event ends a stream. ``max_tokens`` is a bound the caller set, so an answer that reaches it is
complete, with ``finish_reason: "length"``; ``query.incomplete`` is kept for what the caller did not ask for.
"""

from typing import Literal

import msgspec

from gateway.wire.errors import ErrorBody
from gateway.wire.reply import Citation, Reply, SearchResult, Timings, Usage


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event carries: ``sequence_number`` counts a query's events from 0."""

    sequence_number: int
    query_id: str


class QueryCreated(Event, frozen=True, kw_only=True, tag="query.created"):
    """The query was accepted; ``created_at`` is seconds since the epoch."""

    model: str
    created_at: int


class RetrievalStage(Event, frozen=True, kw_only=True, tag="retrieval.stage"):
    """The best documents known after one stage of the search."""

    stage: int
    elapsed_ms: float
    doc_ids: tuple[str, ...]
    final: bool


class RetrievalCompleted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="retrieval.completed"):
    """The final documents, best first; ``partial`` when ``missing_shards`` did not give all they have.

    Neither of these stands in it otherwise.
    """

    results: tuple[SearchResult, ...]
    elapsed_ms: float
    partial: bool = False
    missing_shards: tuple[str, ...] = ()


class CacheResolved(Event, frozen=True, kw_only=True, tag="cache.resolved"):
    """Where the prompt's tokens came from; ``hit_docs`` counts documents wholly cached, ``tiers`` tokens by tier."""

    prompt_tokens: int
    cached_tokens: int
    composed_tokens: int
    hit_docs: int
    tiers: dict[str, int]


class OutputTextDelta(Event, frozen=True, kw_only=True, tag="output_text.delta"):
    """New text of the answer; never empty."""

    delta: str


class AnnotationAdded(Event, frozen=True, kw_only=True, tag="output_text.annotation.added"):
    """A document that the answer rests on."""

    annotation: Citation


class QueryCompleted(Event, frozen=True, kw_only=True, tag="query.completed"):
    """The end of an answered query; ``response`` is the very object that the JSON reply is."""

    response: Reply
    usage: Usage
    timings: Timings


class QueryIncomplete(Event, frozen=True, kw_only=True, tag="query.incomplete"):
    """The end of a query whose time was up while its text was leaving."""

    reason: Literal["timeout"]


class QueryFailed(Event, frozen=True, kw_only=True, tag="query.failed"):
    """The end of a query that failed after its response had started."""

    error: ErrorBody


TERMINAL = (QueryCompleted, QueryIncomplete, QueryFailed)
