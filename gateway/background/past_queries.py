"""Past queries, and the sequences of documents that they ask for."""

from collections import Counter
from functools import partial
from typing import NamedTuple

from gateway.background.cache_jobs import CacheJob
from gateway.background.replay import Replay
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.wire.schemas import WarmQuery
from protocol.errors import RagtreeError
from protocol.retrieval import SearchRequest


class PastSequence(NamedTuple):
    """A sequence of documents by their contents, and one of the queries that find it."""

    contents: tuple[str, ...]
    search: SearchRequest


class PastQueries:
    """Reads the query log, and finds out which sequences of documents past queries ask for."""

    def __init__(self, replay: Replay, query_log: QueryLog, settings: GatewaySettings) -> None:
        self._replay = replay
        self._query_log = query_log
        self._settings = settings

    def as_search(self, query: WarmQuery, tenant: str, collection: str | None) -> SearchRequest:
        """The search of a past query. ``tenant`` and ``collection`` apply if it names none. Raises QuestionTooLong."""
        named = query if query.collection else query.model_copy(update={"collection": collection})
        return named.to_search(
            query.query.strip(),
            "queries",
            query.tenant or tenant,
            self._settings,
            query.context[: self._settings.max_query_chars],
        )

    async def logged(self, tenant: str, collection: str | None) -> Counter[SearchRequest]:
        """How often each query is in the log. ``tenant`` and ``collection`` apply to those that name none.

        Raises Unavailable if the log cannot be read now.
        """
        return await self._query_log.counted(partial(self.as_search, tenant=tenant, collection=collection))

    async def sequences(self, asked: Counter[SearchRequest], job: CacheJob) -> list[PastSequence]:
        """The sequences of documents that these queries find in idle time, the most frequent first.

        Counts the queries in ``job``. Queries that fail are left out, with the newest error in the job.
        """
        job.queries = asked.total()
        counts = Counter[tuple[str, tuple[str, ...]]]()
        first: dict[tuple[str, tuple[str, ...]], SearchRequest] = {}
        for search, times in asked.items():
            try:
                sequence = search.tenant, await self._replay.documents(search)
            except RagtreeError as error:
                job.unresolved += times
                job.progressed(error)
            else:
                job.resolved += times
                counts[sequence] += times
                first.setdefault(sequence, search)
                job.progressed()
        return [PastSequence(sequence[1], first[sequence]) for sequence, _ in counts.most_common()]
