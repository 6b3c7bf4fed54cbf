"""The log of past queries, for warming up the cache and nothing else."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import msgspec
from pydantic import ValidationError

from gateway.wire.filters import as_requested
from gateway.wire.schemas import WarmQuery
from protocol.errors import InvalidRequest
from protocol.retrieval import SearchRequest


class QueryLog(Protocol):
    """What was asked, the newest of it. Noting never waits and never fails: what cannot be noted is lost."""

    def note(self, search: SearchRequest) -> None:
        """Note a query, some time soon."""

    async def counted(self, as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
        """How often each query was asked, as far back as the log goes; ``as_search`` runs in a thread.

        Raises Unavailable where the log cannot be read now.
        """


def entry(search: SearchRequest, time: float) -> bytes:
    """A query as it is noted: ``{time, tenant, collection, query, top_k, filters?}`` in JSON, without line breaks."""
    fields: dict[str, object] = {
        "time": time,
        "tenant": search.tenant,
        "collection": search.collection,
        "query": search.query,
        "top_k": search.top_k,
    }
    if search.filters is not None:
        fields["filters"] = as_requested(search.filters)
    return msgspec.json.encode(fields)


def count(entries: Iterable[bytes], as_search: Callable[[WarmQuery], SearchRequest]) -> Counter[SearchRequest]:
    """How often each query stands in the entries."""
    counted: Counter[SearchRequest] = Counter()
    for noted in entries:
        # An entry that the stack was killed over, or from before the limits of today.
        with suppress(ValidationError, InvalidRequest):
            counted[as_search(WarmQuery.model_validate_json(noted))] += 1
    return counted
