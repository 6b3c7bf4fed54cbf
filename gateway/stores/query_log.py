"""The log of past queries, used to warm up the cache."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import msgspec
from pydantic import ValidationError

from gateway.wire.filters import as_requested
from gateway.wire.schemas import WarmQuery
from protocol.errors import InvalidRequest
from protocol.graph import GraphMode
from protocol.retrieval import SearchRequest


class QueryLog(Protocol):
    """The most recent queries. Logging never waits and never fails; queries that cannot be logged are dropped."""

    def note(self, search: SearchRequest) -> None:
        """Log a query in the background."""

    async def counted(self, as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
        """Count how often each query is in the log. ``as_search`` runs in a thread.

        Raises Unavailable if the log cannot be read now.
        """


def entry(search: SearchRequest, time: float) -> bytes:
    """A query's log entry, as JSON without line breaks.

    It is ``{time, tenant, collection, query, top_k, context?, search?, rerank?, mode?, filters?}``.
    """
    fields: dict[str, object] = {
        "time": time,
        "tenant": search.tenant,
        "collection": search.collection,
        "query": search.query,
        "top_k": search.top_k,
    }
    if search.context:
        fields["context"] = search.context
    if search.search is not None:
        fields["search"] = search.search
    if search.rerank is not None:
        fields["rerank"] = search.rerank
    if search.mode is not GraphMode.NAIVE:
        fields["mode"] = search.mode
    if search.filters is not None:
        fields["filters"] = as_requested(search.filters)
    return msgspec.json.encode(fields)


def count(entries: Iterable[bytes], as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
    """Count how often each query occurs in the entries."""
    counted: Counter[SearchRequest] = Counter()
    for noted in entries:
        # Skips entries that a crash cut off, or that exceed limits which were set later.
        with suppress(ValidationError, InvalidRequest):
            counted[as_search(WarmQuery.model_validate_json(noted))] += 1
    return counted
