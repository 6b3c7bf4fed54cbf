"""The reply to a query, as JSON and in ``query.completed``, and that to a search."""

from enum import StrEnum
from typing import Literal

import msgspec

from gateway.wire.document_replies import chunk_url, document_url
from gateway.wire.reuse import FactsAttention, ReuseClass
from protocol.filters import Attributes
from protocol.generation import FinishReason, TokenLogprob
from protocol.graph import GraphMode, Subgraph
from protocol.plans import Fallback
from protocol.retrieval import CandidateSet, Lines, Pages, Reranking, SearchKind


class RewriteFailure(StrEnum):
    """Why a follow-up was searched as it is.

    The model did not rewrite it in time (``timeout``), could not be asked (``failed``), or wrote no question
    (``empty``) or one that did not end (``too_long``).
    """

    TIMEOUT = "timeout"
    FAILED = "failed"
    EMPTY = "empty"
    TOO_LONG = "too_long"


class Rewriting(msgspec.Struct, frozen=True):
    """A follow-up that was to be rewritten before the search, which took ``elapsed_ms`` and ``tokens`` of the model.

    ``question`` is what was searched. If the rewriting ``failed``, ``reason`` says why, and the search was for the
    follow-up joined with the questions before it.
    """

    status: Literal["done", "failed"]
    reason: RewriteFailure | None
    question: str | None
    elapsed_ms: float
    tokens: int


_LEAST = -9999.0
"""Stands for the logarithm of 0, which JSON has no number for."""


class LikelyToken(msgspec.Struct, frozen=True):
    """A token's text, its UTF-8 ``bytes``, and the natural logarithm of its probability."""

    token: str
    bytes: list[int]
    logprob: float


class ScoredToken(LikelyToken, frozen=True):
    """A token of an answer. ``top_logprobs`` are the most likely tokens in its place, best first."""

    top_logprobs: tuple[LikelyToken, ...]


def scored(token: TokenLogprob, alternatives: int) -> ScoredToken:
    """The token with this number of most likely ones in its place."""
    best = sorted(token.alternatives.items(), key=lambda item: item[1], reverse=True)[:alternatives]
    text = token.texts.get(token.token_id, "")
    return ScoredToken(
        text,
        list(text.encode("utf-8", "replace")),
        max(token.logprob, _LEAST),
        tuple(_likely(token.texts.get(token_id, ""), logprob) for token_id, logprob in best),
    )


def _likely(text: str, logprob: float) -> LikelyToken:
    return LikelyToken(text, list(text.encode("utf-8", "replace")), max(logprob, _LEAST))


class SearchResult(msgspec.Struct, frozen=True):
    """A chunk that the search found. ``index`` is its rank from 0, by ``score``.

    ``title`` is its document's, ``lines`` and ``pages`` are where it lies in the document; null where unknown. ``url``
    is the path of the chunk, which lasts until the document is replaced; ``document_url`` that of the document.
    ``text`` is present on request.

    The score of a dense search is the cosine similarity to the question, that of a sparse one is BM25, and that of a
    hybrid one is a weighted sum of both. If the results are reranked, it is the reranker's. ``dense_score`` and
    ``sparse_score`` are those of the search; null if the chunk is not among the best of that ranking.
    """

    index: int
    document_id: str
    filename: str
    chunk_id: str
    score: float
    dense_score: float | None
    sparse_score: float | None
    attributes: Attributes
    title: str | None
    lines: Lines | None
    pages: Pages | None
    url: str
    document_url: str
    text: str | msgspec.UnsetType = msgspec.UNSET


class Citation(msgspec.Struct, frozen=True, tag_field="type", tag="file_citation"):
    """A result that was in the prompt. ``index`` is its position in ``results``."""

    document_id: str
    filename: str
    index: int
    chunk_id: str


class TextSpan(msgspec.Struct, frozen=True):
    """A part of ``output_text``: Unicode characters from ``start`` up to ``end``."""

    start: int
    end: int


class CitedPassage(msgspec.Struct, frozen=True):
    """A result that the answer rests on, by its words. ``index`` is its position in ``results``.

    ``spans`` are the sentences that rest on it. ``overlap`` is the share of the best one that it holds, from 0 to
    1.
    """

    index: int
    document_id: str
    chunk_id: str
    overlap: float
    spans: tuple[TextSpan, ...]


EntryName = Literal[
    "rewrite", "retrieval_stage", "rerank", "speculation", "queue", "kv_load", "prefill", "first_token", "decode", "end"
]  # fmt: skip


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A phase of ``duration_ms``, or a moment without duration, ``at_ms`` after the query's arrival.

    The ``detail`` of a ``rewrite`` says how many tokens the model took, or why the follow-up was not rewritten.
    The ``detail`` of a ``rerank`` says how many chunks were reranked, or why they were not. A ``speculation`` ends with
    its outcome, given as ``detail``: ``confirmed``, ``wrong`` or ``gave_way``. ``kv_load`` is the first part of
    ``prefill``. Both lie within the speculation if one was confirmed. ``first_token`` is the moment at which the first
    token could be sent.
    """

    name: EntryName
    at_ms: float
    duration_ms: float | None = None
    detail: str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """The prompt's tokens that were not simply computed.

    ``cached_tokens`` had KV after the same documents, ``composed_tokens`` after others. ``recomputed_tokens`` had
    that too, and were computed again.
    """

    cached_tokens: int
    composed_tokens: int
    recomputed_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and the answer, in OpenAI's format."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculationTimings(msgspec.Struct, frozen=True):
    """Result of generating on provisional documents.

    If the ``outcome`` is ``confirmed``, the last of ``generations`` became the answer; it began ``began_ms`` after the
    query's arrival. ``wasted_tokens`` counts the prompt tokens that the others are known to have computed without use
    for the final prompt. During ``overlapped_ms`` of the search, tokens were computed that the answer uses.
    """

    outcome: Literal["confirmed", "dropped"]
    generations: int
    began_ms: float | None
    wasted_tokens: int
    overlapped_ms: float


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds by phase. ``ttft_ms`` and ``total_ms`` count from the query's arrival.

    ``stages_ms`` are the ends of the search's stages. ``non_overlapped_ms`` is the part of ``retrieval_ms`` during
    which nothing was computed that the answer uses. ``speculation`` is null if none was started. ``overtakes`` counts
    the younger queries that overtook this one in the queue.
    """

    queue_ms: float
    retrieval_ms: float
    stages_ms: tuple[float, ...]
    non_overlapped_ms: float
    speculation: SpeculationTimings | None
    kv_load_ms: float
    prefill_ms: float
    ttft_ms: float
    total_ms: float
    overtakes: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its sources.

    ``citations`` are the ``results`` that were in the prompt, ``cited`` those that the answer rests on, by
    their words. ``dropped_documents`` counts the last results, which did not fit the model's context;
    ``dropped_chunk_ids`` lists them. A ``partial`` answer lacks results of ``missing_shards`` of the index, so better
    documents may be missing. ``reuse`` says which KV the prompt used; ``fallback`` why none of it was composed, if that
    was asked for. ``facts_attention`` says how the prompt attended to facts of the graph, null if it has none;
    ``facts_fallback`` why not within trees, if it was to. ``reranking`` says whether a reranker ordered the results, or
    why it did not; null if it was not to. ``graph`` is the part of the collection's graph that led to the results; null
    without a graph ``mode``. ``rewriting`` is the outcome of a follow-up that was to be rewritten; null otherwise.
    ``timeline`` and ``logprobs`` are present on request.
    """

    query_id: str
    object: Literal["query.response"] = "query.response"
    created_at: int
    model: str
    status: Literal["completed"] = "completed"
    finish_reason: FinishReason
    output_text: str
    citations: tuple[Citation, ...]
    cited: tuple[CitedPassage, ...]
    results: tuple[SearchResult, ...]
    dropped_documents: int
    dropped_chunk_ids: tuple[str, ...]
    usage: Usage
    timings: Timings
    reuse: ReuseClass
    fallback: Fallback | None
    facts_attention: FactsAttention | None = None
    facts_fallback: Fallback | None = None
    partial: bool = False
    missing_shards: tuple[str, ...] = ()
    reranking: Reranking | None = None
    graph: Subgraph | None = None
    rewriting: Rewriting | None = None
    timeline: tuple[TimelineEntry, ...] | msgspec.UnsetType = msgspec.UNSET
    logprobs: tuple[ScoredToken, ...] | msgspec.UnsetType = msgspec.UNSET


class SearchTimings(msgspec.Struct, frozen=True):
    """Milliseconds of a search. ``stages_ms`` are the ends of its stages; ``total_ms`` counts from its arrival."""

    retrieval_ms: float
    stages_ms: tuple[float, ...]
    total_ms: float


class SearchReply(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks that a search found, best first. ``search`` is how they were found.

    ``reranking`` says whether a reranker ordered them, or why it did not; null if it was not to. A ``partial`` reply
    lacks results of ``missing_shards`` of the index. ``mode`` says how the collection's graph was used, and ``graph``
    which part of it led to the results; null without a graph. ``context`` is what a model would read, on request.
    """

    object: Literal["search.results"] = "search.results"
    collection: str
    search: SearchKind
    results: tuple[SearchResult, ...]
    timings: SearchTimings
    reranking: Reranking | None
    partial: bool
    missing_shards: tuple[str, ...]
    mode: GraphMode
    graph: Subgraph | None
    context: str | msgspec.UnsetType = msgspec.UNSET


def search_results(candidates: CandidateSet, collection: str, with_text: bool = False) -> tuple[SearchResult, ...]:
    """The final documents of a search of ``collection``, as clients receive them."""
    return tuple(
        SearchResult(
            rank,
            chunk.document_id,
            chunk.filename,
            chunk.chunk_id,
            score,
            dense,
            sparse,
            chunk.attributes,
            chunk.title,
            chunk.lines,
            chunk.pages,
            chunk_url(collection, chunk),
            document_url(collection, chunk.document_id),
            chunk.text if with_text else msgspec.UNSET,
        )
        for rank, (chunk, score, dense, sparse) in enumerate(
            zip(
                candidates.docs,
                candidates.scores,
                candidates.ranking(SearchKind.DENSE),
                candidates.ranking(SearchKind.SPARSE),
                strict=True,
            )
        )
    )
