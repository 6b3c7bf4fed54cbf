"""Replay of past queries on idle capacity, which brings their documents into the knowledge tree."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar
from uuid import uuid4

from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.limits.auth import namespace_of
from gateway.query.lease import Lease
from gateway.query.runs import QueryRuns
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from protocol.errors import EngineDied, NoDocuments
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, SearchRequest

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Replay:
    """Searches for past queries and prefills their documents while the stack is idle.

    The gateway's own queries interrupt it at any point. Queries of other gateways are known to the controller, which
    grants a plan only on an idle instance and is asked again later. Replay one query at a time.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        runs: QueryRuns,
        readiness: Readiness,
        tasks: BackgroundTasks,
        settings: GatewaySettings,
    ) -> None:
        self._parts = parts
        self._runs = runs
        self._readiness = readiness
        self._tasks = tasks
        self._settings = settings

    async def documents(self, search: SearchRequest) -> tuple[str, ...]:
        """Contents of the query's prompt, in order. Raises what the search and the layout raise."""
        found = await self._when_idle(self._found, search)
        return tuple(document.key for document in self._lay_out(search, found).documents)

    async def prefill(self, search: SearchRequest) -> int:
        """Bring the query's documents into the tree. Returns the computed tokens, 0 if all documents were there.

        Raises what the parts raise, and DeadlineExceeded.
        """
        return await self._when_idle(self._attempt, search)

    async def _when_idle(
        self, work: Callable[[SearchRequest], Coroutine[Any, Any, T | None]], search: SearchRequest
    ) -> T:
        """The result of ``work``. Repeats it after an interruption, or if it returns None because the stack is busy."""
        wait_s = _FIRST_WAIT_S
        while True:
            await self._runs.wait_idle()
            if not self._readiness.missing():
                try:
                    result = await self._unless_interrupted(work(search))
                except EngineDied:
                    # Otherwise the next replay would meet the same dead engine.
                    await self._readiness.check()
                    raise
                if result is not None:
                    return result
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T | None]) -> T | None:
        """The result of ``work``, or None if a query arrives first, which cancels the work."""
        working = asyncio.create_task(work)
        arrival = asyncio.create_task(self._runs.wait_busy())
        try:
            await asyncio.wait({working, arrival}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            arrival.cancel()
            await asyncio.wait({working, arrival})

    async def _attempt(self, search: SearchRequest) -> int | None:
        # Searches again, because documents may have been deleted since the past query.
        searched_at = time.time()
        found = await self._found(search)
        prompt = self._lay_out(search, found)
        query_id = f"warm_{uuid4().hex}"
        deadline = self._deadline()
        with Lease(query_id, self._parts.controller, self._tasks) as lease:
            before = await deadline.wait(self._parts.controller.stats())
            order = self._settings.default_document_order
            request = AdmissionRequest(
                query_id, namespace_of(search.tenant), prompt, searched_at, order, scores=found.scores
            )
            plan = await deadline.wait(lease.admit(self._parts.controller.warm(request)))
            if plan is None:
                # Either a query is running, or there is nothing to compute, if the controller was idle throughout.
                after = await deadline.wait(self._parts.controller.stats())
                idle = not before.running and not before.queued and after.admitted == before.admitted
                return 0 if idle else None
            computed = await self._computed(lease, plan, deadline)
            lease.completed()
            return computed

    async def _computed(self, lease: Lease, plan: PrefillPlan, deadline: Deadline) -> int:
        computed = 0
        stream = self._parts.generator.stream(plan, Sampling(max_tokens=1))
        async for step in lease.steps(stream, deadline, self._settings.first_step_timeout_s):
            if step.prefill is not None:
                computed = step.prefill.prompt_tokens - step.prefill.cached_tokens
        return computed

    async def _found(self, search: SearchRequest) -> CandidateSet:
        last: CandidateSet | None = None
        async with aclosing(self._parts.retriever.search(search)) as stages:
            async for found in self._deadline().each(stages):
                last = found
        if last is None or not last.docs:
            raise NoDocuments("The query finds no documents.", "queries")
        return last

    def _lay_out(self, search: SearchRequest, found: CandidateSet) -> Prompt:
        # Leaves room for an answer of the default length, so that the same documents fit as in the query.
        question = (ChatMessage("user", search.query),)
        return self._parts.layout.lay_out(question, found.docs, self._settings.default_max_tokens)

    def _deadline(self) -> Deadline:
        return Deadline(self._settings.query_timeout_s, "The query was not replayed")
