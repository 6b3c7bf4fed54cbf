"""Past queries, the sequences of documents that they ask for, and their replay on idle capacity."""

from collections import Counter
from contextlib import aclosing
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from gateway.background.cache_jobs import CacheJob
from gateway.background.idle import IdlePrefill, IdleTime, Prefilled
from gateway.limits.auth import namespace_of
from gateway.query.laid_out import laid_out
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.tasks import Deadline
from gateway.wire.schemas import WarmQuery
from protocol.errors import NoDocuments, RagtreeError
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, SearchRequest


class PastSequence(NamedTuple):
    """A sequence of documents by their contents, and one of the queries that find it."""

    contents: tuple[str, ...]
    search: SearchRequest


class PastQueries:
    """Reads the query log, finds the documents that past queries ask for, and prefills them while the stack is idle.

    The gateway's own queries interrupt that at any point. Replay one query at a time.
    """

    def __init__(
        self, parts: Parts, idle: IdleTime, prefill: IdlePrefill, query_log: QueryLog, settings: GatewaySettings
    ) -> None:
        self._parts = parts
        self._idle = idle
        self._prefill = prefill
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
                sequence = search.tenant, await self._documents(search)
            except RagtreeError as error:
                job.unresolved += times
                job.progressed(error)
            else:
                job.resolved += times
                counts[sequence] += times
                first.setdefault(sequence, search)
                job.progressed()
        return [PastSequence(sequence[1], first[sequence]) for sequence, _ in counts.most_common()]

    async def _documents(self, search: SearchRequest) -> tuple[str, ...]:
        """Contents of the query's prompt, in order. Raises what the search and the layout raise."""
        found = await self._idle.spend(partial(self._found, search))
        prompt = await self._lay_out(search, found)
        return tuple(document.key for document in prompt.documents)

    async def prefill(self, search: SearchRequest, *, evicting: bool) -> Prefilled:
        """Bring the query's documents into the tree; unless ``evicting``, as far as the tiers have room.

        Raises what the parts raise, and DeadlineExceeded.
        """
        return await self._idle.spend(partial(self._attempt, search, evicting=evicting))

    async def _attempt(self, search: SearchRequest, *, evicting: bool) -> Prefilled | None:
        # Searches again, because documents may have been deleted since the past query.
        found = await self._found(search)
        request = AdmissionRequest(
            f"warm_{uuid4().hex}",
            namespace_of(search.tenant),
            await self._lay_out(search, found),
            found.revisions,
            self._settings.default_document_order,
            scores=found.scores,
            # Composed KV is not kept, so it would warm up nothing.
            reuse=Reuse.EXACT,
        )
        return await self._prefill.attempt(request, evicting=evicting)

    async def _found(self, search: SearchRequest) -> CandidateSet:
        last: CandidateSet | None = None
        deadline = Deadline(self._settings.query_timeout_s, "The query was not replayed")
        async with aclosing(self._parts.retriever.search(search)) as stages:
            async for found in deadline.each(stages):
                last = found
        if last is None or not last.docs:
            raise NoDocuments("The query finds no documents.", "queries")
        return last

    async def _lay_out(self, search: SearchRequest, found: CandidateSet) -> Prompt:
        # Leaves room for an answer of the default length, so that the same documents fit as in the query.
        question = (ChatMessage("user", search.query),)
        return await laid_out(self._parts.layout, question, found.docs, self._settings.default_max_tokens)
