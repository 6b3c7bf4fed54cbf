"""Replay of past queries on idle capacity, which brings their documents into the knowledge tree."""

import time
from contextlib import aclosing
from functools import partial
from uuid import uuid4

from gateway.background.idle_time import IdleTime
from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.limits.auth import namespace_of
from gateway.query.lease import Lease
from gateway.settings import GatewaySettings
from protocol.errors import NoDocuments
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan, Reuse
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, SearchRequest


class Replay:
    """Searches for past queries and prefills their documents while the stack is idle.

    The gateway's own queries interrupt it at any point. Queries of other gateways are known to the controller, which
    grants a plan only on an idle instance and is asked again later. Replay one query at a time.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        idle: IdleTime,
        tasks: BackgroundTasks,
        settings: GatewaySettings,
    ) -> None:
        self._parts = parts
        self._idle = idle
        self._tasks = tasks
        self._settings = settings

    async def documents(self, search: SearchRequest) -> tuple[str, ...]:
        """Contents of the query's prompt, in order. Raises what the search and the layout raise."""
        found = await self._idle.spend(partial(self._found, search))
        return tuple(document.key for document in self._lay_out(search, found).documents)

    async def prefill(self, search: SearchRequest) -> int:
        """Bring the query's documents into the tree. Returns the computed tokens, 0 if all documents were there.

        Raises what the parts raise, and DeadlineExceeded.
        """
        return await self._idle.spend(partial(self._attempt, search))

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
            namespace = namespace_of(search.tenant)
            # Composed KV is not kept, so it would warm up nothing.
            request = AdmissionRequest(
                query_id, namespace, prompt, searched_at, order, scores=found.scores, reuse=Reuse.EXACT
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
                computed = step.prefill.computed_tokens
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
