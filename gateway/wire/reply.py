"""The reply to a query: what a JSON caller gets, and what ``query.completed`` carries."""

from typing import Literal

import msgspec

from gateway.wire.timeline import TimelineEntry
from protocol.filters import Attributes
from protocol.generation import FinishReason
from protocol.retrieval import CandidateSet, Chunk


class SearchResult(msgspec.Struct, frozen=True):
    """A chunk that was found; ``index`` is its rank from 0, ``score`` its cosine to the question."""

    index: int
    document_id: str
    filename: str
    chunk_id: str
    score: float
    attributes: Attributes


class Citation(msgspec.Struct, frozen=True, tag_field="type", tag="file_citation"):
    """A result that stood in the prompt; ``index`` is its place in ``results``."""

    document_id: str
    filename: str
    index: int
    chunk_id: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens were not computed anew."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and of the answer, in OpenAI's shape."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculationTimings(msgspec.Struct, frozen=True):
    """What generating on provisional documents came to: the last of so many ``generations`` was ``confirmed``, or none.

    That one began ``began_ms`` after the query's arrival. For the others ``wasted_tokens`` were computed, as far as is
    known, that the final prompt has no use for; the documents in its front that they had, too, are found. During
    ``overlapped_ms`` of the search, tokens were computed that the answer rests on.
    """

    outcome: Literal["confirmed", "dropped"]
    generations: int
    began_ms: float | None
    wasted_tokens: int
    overlapped_ms: float


class Timings(msgspec.Struct, frozen=True):
    """Milliseconds by phase; ``ttft_ms`` and ``total_ms`` count from the query's arrival.

    ``stages_ms`` are the ends of the search's stages, ``non_overlapped_ms`` is the part of ``retrieval_ms`` in which
    nothing was computed that the answer rests on. ``speculation`` is null where none was tried. While it waited for
    ``queue_ms``, the query was overtaken ``overtakes`` times by younger ones.
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

    ``citations`` are the ``results`` that stood in the prompt. ``dropped_documents`` counts those that the model's
    context had no room for, from the tail; ``dropped_chunk_ids`` names them. An answer is ``partial`` when
    ``missing_shards`` of the index did not give all they have, so that better documents may be missing.
    ``timeline`` stands in it where it was asked for.
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
    partial: bool = False
    missing_shards: tuple[str, ...] = ()
    timeline: tuple[TimelineEntry, ...] | msgspec.UnsetType = msgspec.UNSET


def search_results(candidates: CandidateSet) -> tuple[SearchResult, ...]:
    """The final documents of a search, as clients see them."""
    return tuple(
        SearchResult(rank, chunk.document_id, chunk.filename, chunk.chunk_id, score, chunk.attributes)
        for rank, (chunk, score) in enumerate(zip(candidates.docs, candidates.scores, strict=True))
    )


def citation(rank: int, chunk: Chunk) -> Citation:
    """The citation of the document at ``rank`` of the results."""
    return Citation(chunk.document_id, chunk.filename, rank, chunk.chunk_id)
