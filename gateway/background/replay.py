"""Replay of past queries on idle capacity, which brings their documents into the knowledge tree."""

from contextlib import aclosing
from functools import partial
from uuid import uuid4

from gateway.background.idle_prefill import IdlePrefill, Prefilled
from gateway.background.idle_time import IdleTime
from gateway.deadline import Deadline
from gateway.limits.auth import namespace_of
from gateway.query.laid_out import laid_out
from gateway.settings import GatewaySettings
from protocol.errors import NoDocuments
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, SearchRequest


class Replay:
    """Searches for past queries and prefills their documents while the stack is idle.

    The gateway's own queries interrupt it at any point. Replay one query at a time.
    """

    def __init__(self, parts: Parts, idle: IdleTime, prefill: IdlePrefill, settings: GatewaySettings) -> None:
        self._parts = parts
        self._idle = idle
        self._prefill = prefill
        self._settings = settings

    async def documents(self, search: SearchRequest) -> tuple[str, ...]:
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
