"""Prefills on idle capacity, which bring documents into the knowledge tree."""

from typing import Literal, NamedTuple, TypeAlias

from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.query.lease import Lease
from gateway.settings import GatewaySettings
from protocol.errors import EngineDied, InternalError, UnknownDocument
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, NotWarmed, PrefillPlan
from protocol.repeating import MOST_ATTEMPTS, Attempts

Outcome: TypeAlias = Literal["computed", "present", "no_room"]


class Prefilled(NamedTuple):
    """What became of a prefill: computed, present in the tree before, or without room in the tiers."""

    outcome: Outcome
    computed_tokens: int = 0


class IdlePrefill:
    """Prefills what the tree lacks of a prompt's documents, if the stack is idle.

    The controller knows the queries of other gateways. It grants a plan only on an idle instance. What an engine has
    died of in as many attempts as there may be is not tried again while the gateway runs: each costs all queries their
    engine.
    """

    def __init__(self, parts: Parts, tasks: BackgroundTasks, settings: GatewaySettings) -> None:
        self._parts = parts
        self._tasks = tasks
        self._settings = settings
        # By namespace and the keys of the prompt.
        self._attempts = Attempts[tuple[str, tuple[str, ...]]]()

    async def attempt(self, request: AdmissionRequest, *, evicting: bool) -> Prefilled | None:
        """What became of the prefill; None if the stack is busy.

        Unless it is ``evicting``, there is no room for documents that do not fit beside what an idle instance's tiers
        hold. Raises what the parts raise, UnknownDocument for one that was deleted meanwhile, InternalError for what is
        given up, and DeadlineExceeded.
        """
        work = request.namespace, tuple(segment.key for segment in request.prompt.prefix)
        if self._attempts.exhausted(work):
            raise InternalError(f"the engine died in each of {MOST_ATTEMPTS} attempts to prefill these documents")
        deadline = Deadline(self._settings.query_timeout_s, "The documents were not prefilled")
        controller = self._parts.controller
        with Lease(request.query_id, controller, self._tasks) as lease:
            plan = await deadline.wait(lease.admit(controller.warm(request, evicting)))
            match plan:
                case NotWarmed.BUSY:
                    return None
                case NotWarmed.CACHED:
                    return Prefilled("present")
                case NotWarmed.NO_ROOM:
                    return Prefilled("no_room")
                case NotWarmed.OUTDATED:
                    raise UnknownDocument("a document was deleted while it was being prefilled", "document_id")
            self._attempts.count(work)
            try:
                computed = await self._computed(lease, plan, deadline)
            except EngineDied:
                raise
            except BaseException:
                self._attempts.take_back(work)
                raise
            self._attempts.forget(work)
            lease.completed()
            return Prefilled("computed", computed) if computed else Prefilled("present")

    async def _computed(self, lease: Lease, plan: PrefillPlan, deadline: Deadline) -> int:
        computed = 0
        stream = self._parts.generator.stream(plan, Sampling(max_tokens=1))
        async for step in lease.steps(stream, deadline, self._settings.first_step_timeout_s):
            if step.prefill is not None:
                computed = step.prefill.computed_tokens
        return computed
