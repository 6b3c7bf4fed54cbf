"""The admission of a query and the stream of its answer."""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType

import structlog

from gateway.query.context import Attempt, QueryContext
from gateway.query.guess import Guess
from gateway.query.lease import Lease
from protocol.errors import EngineDied
from protocol.generation import GenerationStep
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet, Revisions

log = structlog.get_logger(__name__)


class Generation:
    """Admits a query and streams its answer. Retries once on another instance if the first is lost before a step.

    A query that an engine has failed at is not retried, nor is one that was lost with two engines (``EngineLosses``).

    Start it with ``admit``, or with ``take_over`` if a guess was confirmed. As a context manager, it closes its lease
    at the end of its block.
    """

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self._attempt = Attempt(context.query.query_id)
        self._lease: Lease | None = None
        self._guess: Guess | None = None
        self._admission: asyncio.Task[PrefillPlan] | None = None
        self._found_at: Revisions = ()
        # When the plan was asked for, and when its stream began, in ms since the query's arrival.
        self._asked_ms = self._began_ms = 0.0
        self._lost: tuple[str, EngineDied] | None = None

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.close(error)

    def take_over(self, guess: Guess) -> None:
        """Continue a confirmed guess, which is already admitted."""
        self._guess = guess
        self._lease = guess.lease
        self._found_at = guess.found_at

    async def admit(self, prompt: Prompt, found: CandidateSet) -> None:
        """Ask for admission of the prompt on the documents ``found``, and wait for it for up to ``hold_back_s``.

        Raises the controller's refusal until then.
        """
        self._found_at = found.revisions
        admission = self._ask(self._context.admission_request(self._attempt, prompt, found))
        await asyncio.wait({admission}, timeout=self._context.settings.pace.hold_back_s)
        if admission.done():
            admission.result()

    async def steps(self) -> AsyncGenerator[tuple[PrefillPlan, GenerationStep]]:
        """The answer's steps, each with its plan. Raises what admission and the generator raise."""
        while True:
            plan = await self._plan()
            started = False
            try:
                async for step in self._stream(plan):
                    started = True
                    if step.prefill is not None:
                        prefilled_ms = self._context.timeline.now_ms() if not self._guess else self._guess.prefilled_ms
                        self._context.timeline.prefilled(step.prefill, self._began_ms, prefilled_ms)
                    yield plan, step
                return
            except EngineDied as error:
                if not started:
                    self._context.losses.note(error)
                if started or self._attempt.retry:
                    raise
                self._retry(plan, error)

    def completed(self) -> None:
        """Mark the answer as complete."""
        assert self._lease is not None
        self._lease.completed()

    def _ask(self, request: AdmissionRequest) -> asyncio.Task[PrefillPlan]:
        self._asked_ms = self._context.timeline.now_ms()
        self._lease = self._context.lease(self._attempt)
        self._admission = self._lease.admit(self._context.parts.controller.admit(request))
        return self._admission

    async def _plan(self) -> PrefillPlan:
        """The plan of the current attempt, once it is admitted."""
        context = self._context
        if self._guess is not None:
            plan = self._guess.plan
            self._began_ms = self._guess.began_ms
        else:
            assert self._admission is not None, "admit or take_over comes first"
            plan = await context.deadline.wait(self._admission)
            context.timeline.queued(self._asked_ms, plan.overtaken)
            self._began_ms = context.timeline.now_ms()
        context.transcript.admitted(plan)
        context.metrics.admitted(plan.queued_ms / 1000, plan.overtaken)
        if self._lost is not None:
            instance, error = self._lost
            query_id = context.query.query_id
            log.info("retried", query_id=query_id, lost=instance, on=plan.instance, reason=error.message)
            context.metrics.retried()
        return plan

    def _stream(self, plan: PrefillPlan) -> AsyncGenerator[GenerationStep]:
        assert self._lease is not None
        return self._context.stream(self._lease, plan) if self._guess is None else self._guess.steps()

    def _retry(self, plan: PrefillPlan, error: EngineDied) -> None:
        """Ask for a plan on another instance. No event has left yet that depends on the lost one."""
        assert self._lease is not None
        self._lease.close(error)
        self._guess = None
        self._lost = plan.instance, error
        self._attempt = self._attempt._replace(retry=self._attempt.retry + 1)
        self._ask(self._context.repeated_request(self._attempt, plan, self._found_at))
