"""The lease of one plan: what a query holds of the controller and the generator, and its release."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from gateway.query.tracing import ChatTrace
from gateway.query.transcript import NO_PREFILL
from gateway.tasks import CLOSE_TIMEOUT_S, BackgroundTasks, Deadline, Ends, close_iterator
from protocol.errors import EngineDied, UnknownPlan
from protocol.generation import FinishReason, GenerationStep, PrefillResult
from protocol.kv import LostCopy
from protocol.parts import Controller
from protocol.plans import CompletionReport, NotWarmed, PlanOutcome

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Lease(Ends):
    """One plan's place in the queue, its stream, and the controller's record of it.

    ``end`` gives all of that back in a background task, once. As a context manager, a lease ends at the end of its
    block. If a plan was asked for, the controller receives exactly one completion report: COMPLETED after
    ``completed``, else FAILED after an error, else CANCELLED. The task ``released`` ends after that report.
    """

    def __init__(self, plan_id: str, controller: Controller, tasks: BackgroundTasks) -> None:
        self._plan_id = plan_id
        self._controller = controller
        self._tasks = tasks
        self._admission: asyncio.Task[Any] | None = None
        self._stream: AsyncIterator[GenerationStep] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._end: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self._notice: asyncio.Task[None] | None = None
        self._prefill = NO_PREFILL
        self._completion_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._unwritten: tuple[LostCopy, ...] | None = None
        self._chat: ChatTrace | None = None
        self._completed = False
        self._prefill_reported = False
        self.released: asyncio.Task[None] | None = None

    def end(self, error: BaseException | None = None) -> asyncio.Task[None]:
        """Start the release, and return its task. Later calls return the same task and change nothing."""
        if self.released is None:
            if self._chat is not None:
                self._chat.ended(self._completion_tokens, self._finish_reason, error)
            outcome = PlanOutcome.FAILED if isinstance(error, Exception) else PlanOutcome.CANCELLED
            self.released = self._tasks.start(self._release(PlanOutcome.COMPLETED if self._completed else outcome))
        return self.released

    @property
    def prefill(self) -> PrefillResult | None:
        """Result of the plan's prefill; None before the first step."""
        return None if self._prefill is NO_PREFILL else self._prefill

    def completed(self) -> None:
        """Mark the plan as completed: errors from here on no longer change its outcome."""
        self._completed = True

    def admit(self, admit: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call that asks the controller for a plan. Ending cancels it.

        A call that returns None or NotWarmed has granted nothing, so there is nothing to release.
        """
        admission = asyncio.create_task(admit)
        self._admission = admission
        return admission

    def read_in_background(
        self, read: Coroutine[Any, Any, None], end: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        """Run ``read``, which consumes the steps of a speculative plan.

        At release, ``end(plan_id)`` makes the generator end the plan, so that what it computed is known and kept.
        """
        self._reader = asyncio.create_task(read)
        self._end = end

    async def steps(
        self,
        stream: AsyncIterator[GenerationStep],
        deadline: Deadline,
        first_within_s: float,
        chat: ChatTrace | None = None,
    ) -> AsyncGenerator[GenerationStep]:
        """Steps of the plan's ``stream``, which is closed at release. ``chat`` is the span that records them.

        Reports the first step to the controller in the background. Raises what the stream raises, DeadlineExceeded, and
        EngineDied if the stream ends without a finish reason.
        """
        self._chat = chat
        self._stream = stream
        async for step in deadline.each(stream, first_within_s):
            if step.prefill is not None:
                self._prefill = step.prefill
                self._notice = self._tasks.start(self._report_prefilled(step.prefill))
                if chat is not None:
                    chat.prefilled(step.prefill)
            self._completion_tokens += step.tokens
            self._finish_reason = step.finish_reason
            self._unwritten = step.unwritten
            yield step
        if self._finish_reason is None:
            raise EngineDied("The engine's stream ended in the middle of the answer.")

    async def _report_prefilled(self, prefill: PrefillResult) -> None:
        try:
            await self._controller.prefilled(self._plan_id, prefill.lost, prefill.reads)
            self._prefill_reported = True
        except UnknownPlan:
            log.debug("nothing_to_commit", plan_id=self._plan_id)
        except Exception as error:
            log.warning("prefill_not_reported", plan_id=self._plan_id, error=repr(error))

    async def _release(self, outcome: PlanOutcome) -> None:
        if self._admission is not None:
            # Before complete(): a plan granted after its completion would never be released.
            self._admission.cancel()
            await asyncio.wait({self._admission}, timeout=CLOSE_TIMEOUT_S)
        if self._reader is not None:
            await self._end_reader(self._reader)
        if self._stream is not None:
            await close_iterator(self._stream)
        if self._notice is not None:
            # The controller must receive prefilled() before complete().
            await asyncio.wait({self._notice}, timeout=CLOSE_TIMEOUT_S)
        if self._nothing_granted():
            return
        try:
            await self._controller.complete(self._report(outcome))
        except UnknownPlan:
            # The cancelled admission gave up its place in the queue, or never reached it.
            log.debug("nothing_to_release", plan_id=self._plan_id)
        except Exception as error:
            log.warning("lease_not_released", plan_id=self._plan_id, error=repr(error))

    def _report(self, outcome: PlanOutcome) -> CompletionReport:
        return CompletionReport(
            query_id=self._plan_id,
            outcome=outcome,
            cached_tokens=self._prefill.cached_tokens,
            computed_tokens=self._prefill.computed_tokens,
            composed_tokens=self._prefill.composed_tokens,
            completion_tokens=self._completion_tokens,
            prefill_ms=self._prefill.prefill_ms,
            # Reported once: another plan may have restored the copies since.
            lost=() if self._prefill_reported else self._prefill.lost,
            unwritten=self._unwritten,
            reads=() if self._prefill_reported else self._prefill.reads,
        )

    async def _end_reader(self, reader: asyncio.Task[None]) -> None:
        """End a speculative plan and read its last step. A stream that is still being read must not be closed."""
        if not reader.done() and self._end is not None:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._end(self._plan_id)
                    await asyncio.wait({reader})
            except Exception as error:
                log.warning("speculation_not_ended", plan_id=self._plan_id, error=repr(error))
        reader.cancel()
        await asyncio.wait({reader}, timeout=CLOSE_TIMEOUT_S)

    def _nothing_granted(self) -> bool:
        """Whether no plan was asked for, or the controller granted none.

        After an error or a cancellation the controller may still hold a plan.
        """
        if self._admission is None:
            return True
        if not self._admission.done() or self._admission.cancelled():
            return False
        # Reading the exception also keeps asyncio from logging it as never retrieved.
        if self._admission.exception() is not None:
            return False
        return self._admission.result() is None or isinstance(self._admission.result(), NotWarmed)
