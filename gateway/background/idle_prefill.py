"""Prefills on idle capacity, which bring documents into the knowledge tree."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeAlias

from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.query.lease import Lease
from gateway.settings import GatewaySettings
from protocol.errors import EngineDied, EngineFailed, UnknownDocument
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, NotWarmed, PrefillPlan
from protocol.repeating import Attempts

Outcome: TypeAlias = Literal["computed", "present", "no_room"]


class Prefilled(NamedTuple):
    """What became of a prefill: computed, present in the tree before, or without room in the tiers."""

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
        self._attempts = Attempts[str]()

    async def attempt(self, request: AdmissionRequest, *, evicting: bool) -> Prefilled | None:
        """What became of the prefill; None if the stack is busy.

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
                    self._forget(documents)
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
        try:
            yield
        except EngineFailed:
            for document in documents:
                self._attempts.give_up(document)
            raise
        except BaseException as error:
            if not (isinstance(error, EngineDied) and error.begun):
                for document in documents:
                    self._attempts.take_back(document)
            raise
        self._forget(documents)

    def _forget(self, documents: Sequence[str]) -> None:
        for document in documents:
            self._attempts.forget(document)

    async def _computed(self, lease: Lease, plan: PrefillPlan, deadline: Deadline) -> int:
        computed = 0
        stream = self._parts.generator.stream(plan, Sampling(max_tokens=1))
        async for step in lease.steps(stream, deadline, self._settings.pace.first_step_timeout_s):
            if step.prefill is not None:
                computed = step.prefill.computed_tokens
        return computed
