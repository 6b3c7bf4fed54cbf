"""The contract of a query log. Subclasses have a fixture ``noting``: a context of an open log."""

from gateway.settings import GatewaySettings
from gateway.wire.schemas import WarmQuery
from protocol.filters import Comparison, Compound
from protocol.retrieval import SearchKind, SearchRequest

SETTINGS = GatewaySettings()


def search(number: int = 0, **changes) -> SearchRequest:
    return SearchRequest(**{"tenant": "acme", "collection": "c", "query": f"query {number}", "top_k": 3, **changes})


def as_search(query: WarmQuery) -> SearchRequest:
    return query.to_search(query.query, "query", query.tenant, SETTINGS, query.context)


class QueryLogContract:
    async def test_reading_returns_the_logged_searches(self, noting):
        filters = Compound("or", (Comparison("lang", "in", ("en", 1.0, True)), Comparison("year", "gte", 2000.0)))
        asked = [
            search(1),
            search(2, filters=filters),
            search(1),
            search(3, query="naïve\n\u2028 \U0001f333", search=SearchKind.SPARSE, context="before\nthat", rerank=False),
        ]
        async with noting() as log:
            for one in asked:
                log.note(one)
        async with noting() as log:
            assert await log.counted(as_search) == {asked[0]: 2, asked[1]: 1, asked[3]: 1}

    async def test_empty_log_counts_nothing(self, noting):
        async with noting() as log:
            assert await log.counted(as_search) == {}

    async def test_unreadable_entries_are_skipped(self, noting):
        async with noting() as log:
            log.note(search(1))
            log.note(search(2, query=" "))
            log.note(search(3, collection="not a collection's name"))
        async with noting() as log:
            assert await log.counted(as_search) == {search(1): 1}

    async def test_reopened_log_appends(self, noting):
        for number in range(3):
            async with noting() as log:
                log.note(search(number))
        async with noting() as log:
            assert (await log.counted(as_search)).total() == 3
