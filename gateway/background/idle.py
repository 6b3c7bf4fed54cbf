"""Idle capacity: times in which no query runs, and prefills that then bring documents into the knowledge tree."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from gateway.query.lease import Lease
from gateway.query.runs import QueryRuns
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.tasks import BackgroundTasks, Deadline
from protocol.errors import EngineDied, EngineFailed, Unavailable, UnknownDocument
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, NotWarmed, PrefillPlan
from protocol.repeating import AttemptCounts

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class IdleTime:
    """Runs work while no query of this gateway runs, and begins it again after a query has interrupted it.

    One work runs at a time. Others wait for their turn, in the order of their arrival.
    """

    def __init__(self, runs: QueryRuns, readiness: Readiness) -> None:
        self._runs = runs
        self._readiness = readiness
        # The controller takes no work while other work runs, so two at once would only refuse each other.
        self._turn = asyncio.Lock()

    async def spend(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> T:
        """The result of ``work``. Repeats it after an interruption, or if it returns None because the stack is busy."""
        wait_s = _FIRST_WAIT_S
        while True:
            await self._runs.idle.wait()
            async with self._turn:
                result = await self._attempt(work)
            if result is not None:
                return result
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        if self._readiness.missing():
            return None
        try:
            return await self._unless_interrupted(work())
        except (Unavailable, EngineFailed):
            # Otherwise the next work would meet the same dead part.
            await self._readiness.check()
            raise

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T | None]) -> T | None:
        """The result of ``work``, or None if a query arrives first, which cancels the work."""
        working = asyncio.create_task(work)
        arrival = asyncio.create_task(self._runs.busy.wait())
        try:
            await asyncio.wait({working, arrival}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            arrival.cancel()
            await asyncio.wait({working, arrival})


Outcome: TypeAlias = Literal["computed", "present", "no_room"]


class Prefilled(NamedTuple):
    """The outcome of a prefill: computed, present in the tree before, or without room in the tiers."""

    outcome: Outcome
    computed_tokens: int = 0


class IdlePrefill:
    """Prefills what the tree lacks of a prompt's documents, if the stack is idle.

    The controller knows the queries of other gateways. It grants a plan only on an idle instance.

    No document ends engine after engine: each costs all queries their engine. A document that an engine has failed at,
    or that was computed when engines died in as many attempts as there may be, is not prefilled in idle time again
    while the gateway runs. A query may still ask for it.
    """

    def __init__(self, parts: Parts, tasks: BackgroundTasks, settings: GatewaySettings) -> None:
        self._parts = parts
        self._tasks = tasks
        self._settings = settings
        # Of documents, by their keys.
        self._attempts = AttemptCounts[str]()

    async def attempt(self, request: AdmissionRequest, *, evicting: bool) -> Prefilled | None:
        """The outcome of the prefill; None if the stack is busy.

        Unless it is ``evicting``, there is no room for documents that do not fit beside what an idle instance's tiers
        hold. Raises what the parts raise, UnknownDocument for one that was deleted meanwhile, EngineFailed for one that
        is given up, and DeadlineExceeded.
        """
        documents = [document.key for document in request.prompt.documents]
        if any(map(self._attempts.exhausted, documents)):
            raise EngineFailed("Engines died while they computed a document of this prompt. It is not tried again.")
        deadline = Deadline(self._settings.query_timeout_s, "The documents were not prefilled")
        controller = self._parts.controller
        with Lease(request.query_id, controller, self._tasks) as lease:
            plan = await deadline.wait(lease.admit(controller.warm(request, evicting)))
            match plan:
                case NotWarmed.BUSY:
                    return None
                case NotWarmed.CACHED:
                    # An engine has survived them.
                    for document in documents:
                        self._attempts.forget(document)
                    return Prefilled("present")
                case NotWarmed.NO_ROOM:
                    return Prefilled("no_room")
                case NotWarmed.OUTDATED:
                    raise UnknownDocument("a document was deleted while it was being prefilled", "document_id")
            with self._counted(documents):
                computed = await self._computed(lease, plan, deadline)
            lease.completed()
            return Prefilled("computed", computed) if computed else Prefilled("present")

    @contextmanager
    def _counted(self, documents: Sequence[str]) -> Iterator[None]:
        """Count an attempt at these documents, unless it ends without the death of an engine that computes them."""
        for document in documents:
            self._attempts.count(document)
        note = self._attempts.take_back
        try:
            yield
            note = self._attempts.forget
        except EngineFailed:
            note = self._attempts.give_up
            raise
        except EngineDied as error:
            if error.begun:
                # The attempt stays counted.
                documents = ()
            raise
        finally:
            for document in documents:
                note(document)

    async def _computed(self, lease: Lease, plan: PrefillPlan, deadline: Deadline) -> int:
        computed = 0
        stream = self._parts.generator.stream(plan, Sampling(max_tokens=1))
        async for step in lease.steps(stream, deadline, self._settings.pace.first_step_timeout_s):
            if step.prefill is not None:
                computed = step.prefill.computed_tokens
        return computed
