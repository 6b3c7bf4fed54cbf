"""The admission of a query and the stream of its answer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec
import structlog

from gateway.query.context import QueryContext
from gateway.query.guess import Guess
from gateway.query.lease import Lease
from gateway.tasks import Ends
from protocol.errors import EngineDied
from protocol.generation import GenerationStep
from protocol.plans import AdmissionRequest, DocumentOrder, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet

log = structlog.get_logger(__name__)


class _Admission(NamedTuple):
    """A plan that was asked for, ``asked_ms`` after the query's arrival, and the lease that it runs under."""

    request: AdmissionRequest
    lease: Lease
    plan: asyncio.Task[PrefillPlan]
    asked_ms: float


class Generation(Ends):
    """Admits a query and streams its answer. Retries once on another instance if the first is lost before a step.

    A query that an engine has failed at is not retried, nor is one that was lost with two engines (``EngineLosses``).

    Start it with ``admit``, or with ``take_over`` if a guess was confirmed. As a context manager, it closes its lease
    at the end of its block.
    """

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        # The source of the steps; None before the start.
        self._source: _Admission | Guess | None = None
        # The instance that the first attempt was lost on, and how.
        self._lost: tuple[str, EngineDied] | None = None

    def end(self, error: BaseException | None) -> None:
        """Close the lease."""
        if self._source is not None:
            self._source.lease.end(error)

    def take_over(self, guess: Guess) -> None:
        """Continue a confirmed guess, which is already admitted."""
        self._source = guess

    async def admit(self, prompt: Prompt, found: CandidateSet) -> None:
        """Ask for admission of the prompt on the documents ``found``, and wait for it for up to ``hold_back_s``.

        Raises the controller's refusal until then.
        """
        context = self._context
        admission = self._ask(context.admission_request(context.query.query_id, prompt, found))
        await asyncio.wait({admission}, timeout=context.settings.pace.hold_back_s)
        if admission.done():
            admission.result()

    async def steps(self) -> AsyncGenerator[tuple[PrefillPlan, GenerationStep]]:
        """The answer's steps, each with its plan. Raises what admission and the generator raise."""
        timeline = self._context.timeline
        while True:
            source = self._started_source()
            guess = source if isinstance(source, Guess) else None
            plan = await self._plan(source)
            began_ms = timeline.now_ms() if guess is None else guess.began_ms
            stream = self._context.stream(source.lease, plan) if guess is None else guess.steps()
            started = False
            try:
                async for step in stream:
                    started = True
                    if step.prefill is not None:
                        prefilled_ms = timeline.now_ms() if guess is None else guess.prefilled_ms
                        timeline.prefilled(step.prefill, began_ms, prefilled_ms)
                    yield plan, step
                return
            except EngineDied as error:
                if not started:
                    self._context.losses.note(error)
                if started or self._lost is not None:
                    raise
                source.lease.end(error)
                self._lost = plan.instance, error
                self._ask_again(source.request, plan)

    def completed(self) -> None:
        """Mark the answer as complete."""
        self._started_source().lease.completed()

    def _started_source(self) -> _Admission | Guess:
        assert self._source is not None, "admit or take_over comes first"
        return self._source

    def _ask(self, request: AdmissionRequest) -> asyncio.Task[PrefillPlan]:
        lease = self._context.lease(request.query_id)
        admission = lease.admit(self._context.parts.controller.admit(request))
        self._source = _Admission(request, lease, admission, self._context.timeline.now_ms())
        return admission

    def _ask_again(self, request: AdmissionRequest, lost: PrefillPlan) -> None:
        """Ask for a plan like the ``lost`` one on another instance. No event has left yet that depends on its own."""
        again = msgspec.structs.replace(
            request,
            query_id=f"{self._context.query.query_id}~retry1",
            # Its documents are in their order already.
            prompt=lost.prompt,
            order=DocumentOrder.RETRIEVAL,
            scores=(),
            avoid=(lost.instance,),
        )
        self._ask(again)

    async def _plan(self, source: _Admission | Guess) -> PrefillPlan:
        """The plan of the current attempt, once it is admitted."""
        context = self._context
        if isinstance(source, Guess):
            plan = source.plan
        else:
            plan = await context.deadline.wait(source.plan)
            context.timeline.queued(source.asked_ms, plan.overtaken)
        context.transcript.admitted(plan)
        context.metrics.admitted(plan.queued_ms / 1000, plan.overtaken)
        if self._lost is not None:
            instance, error = self._lost
            query_id = context.query.query_id
            log.info("retried", query_id=query_id, lost=instance, on=plan.instance, reason=error.message)
            context.metrics.retried.inc()
        return plan
