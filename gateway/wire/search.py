"""The request and the reply of a search without generation."""

from typing import Literal

import msgspec
from pydantic import ConfigDict, Field

from gateway.wire.reply import SearchResult, search_results
from gateway.wire.schemas import ContextFields, Question, SearchBody
from protocol.graph import GraphMode, Subgraph
from protocol.retrieval import CandidateSet, Reranking, SearchKind


class FindBody(SearchBody, ContextFields):
    """A search of a collection: the body of a query without what generates the answer."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    query: Question = Field(examples=["How do I read a file line by line?"])
    include: list[Literal["results.text"]] = Field(
        default=["results.text"], max_length=8, description="`results.text`: the text of each result."
    )


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

    @classmethod
    def of(
        cls,
        found: CandidateSet,
        collection: str,
        timings: SearchTimings,
        with_text: bool,
        context: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> "SearchReply":
        """Make the reply from the final candidates."""
        return cls(
            collection=collection,
            search=found.search,
            results=search_results(found, collection, with_text),
            timings=timings,
            reranking=found.reranking,
            partial=bool(found.missing_shards),
            missing_shards=found.missing_shards,
            mode=found.mode,
            graph=found.graph,
            context=context,
        )
