"""The reply to a query, as JSON and in ``query.completed``."""

from typing import Literal

import msgspec

from gateway.wire.logprobs import ScoredToken
from gateway.wire.reuse import ReuseClass
from gateway.wire.timeline import TimelineEntry
from protocol.filters import Attributes
from protocol.generation import FinishReason
from protocol.plans import Fallback
from protocol.retrieval import CandidateSet, Chunk, SearchKind


class SearchResult(msgspec.Struct, frozen=True):
    """A chunk that the search found. ``index`` is its rank from 0, by ``score``.

    The score of a dense search is the cosine similarity to the question, that of a sparse one is BM25, and that of a
    hybrid one is a weighted sum of both. ``dense_score`` and ``sparse_score`` are those behind it; null if the
    chunk is not among the best of that ranking.
    """

    index: int
    document_id: str
    filename: str
    chunk_id: str
    score: float
    dense_score: float | None
    sparse_score: float | None
    attributes: Attributes


class Citation(msgspec.Struct, frozen=True, tag_field="type", tag="file_citation"):
    """A result that was in the prompt. ``index`` is its position in ``results``."""

    document_id: str
    filename: str
    index: int
    chunk_id: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """The prompt's tokens that were not simply computed.

    ``cached_tokens`` had KV behind the same documents, ``composed_tokens`` behind others. ``recomputed_tokens`` had
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

    ``citations`` are the ``results`` that were in the prompt. ``dropped_documents`` counts the last results, which did
    not fit the model's context; ``dropped_chunk_ids`` lists them. A ``partial`` answer lacks results of
    ``missing_shards`` of the index, so better documents may be missing. ``reuse`` says which KV the prompt used;
    ``fallback`` why none of it was composed, if that was asked for. ``timeline`` and ``logprobs`` are present on
    request.
    """

    query_id: str
    object: Literal["query.response"] = "query.response"
    created_at: int
    model: str
    status: Literal["completed"] = "completed"
    finish_reason: FinishReason
    output_text: str
    citations: tuple[Citation, ...]
    results: tuple[SearchResult, ...]
    dropped_documents: int
    dropped_chunk_ids: tuple[str, ...]
    usage: Usage
    timings: Timings
    reuse: ReuseClass
    fallback: Fallback | None
    partial: bool = False
    missing_shards: tuple[str, ...] = ()
    timeline: tuple[TimelineEntry, ...] | msgspec.UnsetType = msgspec.UNSET
    logprobs: tuple[ScoredToken, ...] | msgspec.UnsetType = msgspec.UNSET


def search_results(candidates: CandidateSet) -> tuple[SearchResult, ...]:
    """The final documents of a search, as clients receive them."""
    return tuple(
        SearchResult(rank, chunk.document_id, chunk.filename, chunk.chunk_id, score, dense, sparse, chunk.attributes)
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


def citation(rank: int, chunk: Chunk) -> Citation:
    """The citation of the chunk at ``rank`` of the results."""
    return Citation(chunk.document_id, chunk.filename, rank, chunk.chunk_id)
