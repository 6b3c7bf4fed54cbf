"""What a query holds of the other parts, and the one place where it gives all of that back."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import structlog

from gateway.deadline import Deadline
from gateway.query.tracing import ChatTrace
from protocol.errors import EngineDied, UnknownPlan
from protocol.generation import FinishReason, GenerationStep, PrefillResult
from protocol.parts import Controller
from protocol.plans import CompletionReport, PlanOutcome

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 5.0
_NO_PREFILL = PrefillResult(prompt_tokens=0, cached_tokens=0, prefill_ms=0.0)

log = structlog.get_logger(__name__)


class Releases:
    """The tasks that tell the controller of leases, held here so that they outlive the requests that started them.

    An ``await`` on a remote call in the ``finally`` of a cancelled request never runs to its end, so no request awaits
    its own release.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something to its end, whatever becomes of the caller."""
        # The loop itself holds tasks weakly.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Wait for what is under way, ``timeout_s`` seconds at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)


class Lease:
    """One query's hold on the parts: iterators to close, a place in the queue to give up, a plan to release.

    A context manager. However its block ends, all is given back in the background, once; it may be left before. Where a
    plan was asked for, the controller hears of the end exactly once: failed after an error, cancelled otherwise, unless
    ``completed`` was called; ``released`` is done by then.
    """

    def __init__(self, query_id: str, controller: Controller, releases: Releases) -> None:
        self._query_id = query_id
        self._controller = controller
        self._releases = releases
        self._iterators: list[AsyncIterator[Any]] = []
        self._admission: asyncio.Task[Any] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._end: Callable[[str], Coroutine[Any, Any, None]] | None = None
        self._notice: asyncio.Task[None] | None = None
        self._prefill = _NO_PREFILL
        self._completion_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._chat: ChatTrace | None = None
        self._completed = False
        self._told = False
        self.released: asyncio.Task[None] | None = None

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released is not None:
            return
        if self._chat is not None:
            self._chat.ended(self._completion_tokens, self._finish_reason, error)
        outcome = PlanOutcome.FAILED if isinstance(error, Exception) else PlanOutcome.CANCELLED
        self.released = self._releases.start(self._release(PlanOutcome.COMPLETED if self._completed else outcome))

    @property
    def prefill(self) -> PrefillResult | None:
        """What the plan's prefill came to, once that is known."""
        return None if self._prefill is _NO_PREFILL else self._prefill

    def completed(self) -> None:
        """Note that the plan came to its end, whatever becomes of the block from here on."""
        self._completed = True

    def closing(self, iterator: AsyncIterator[T]) -> AsyncIterator[T]:
        """The same iterator, to be closed at release: closing is what stops the work behind it."""
        self._iterators.append(iterator)
        return iterator

    def admission(self, admit: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The wait for a plan, given up at release; there is nothing to release where it comes to None."""
        admission = asyncio.create_task(admit)
        self._admission = admission
        return admission

    def reading(self, read: Coroutine[Any, Any, None], end: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Let something read the steps of a speculative plan in the background.

        At release the generator ``end``s the plan, so that what it has computed by then is known and kept.
        """
        self._reading = asyncio.create_task(read)
        self._end = end

    async def steps(
        self,
        stream: AsyncIterator[GenerationStep],
        deadline: Deadline,
        first_within_s: float,
        chat: ChatTrace | None = None,
    ) -> AsyncGenerator[GenerationStep]:
        """The steps of the plan's stream, closed at release; the controller hears of the first token meanwhile.

        ``chat`` records them, until this is released. Raises what the stream and the deadline raise, and EngineDied for
        a stream that ends without a reason.
        """
        self._chat = chat
        async for step in deadline.each(self.closing(stream), first_within_s):
            if step.prefill is not None:
                self._prefill = step.prefill
                self._notice = self._releases.start(self._tell_prefilled(step.prefill))
                if chat is not None:
                    chat.prefilled(step.prefill)
            self._completion_tokens += step.tokens
            self._finish_reason = step.finish_reason
            yield step
        if self._finish_reason is None:
            raise EngineDied("The engine's stream ended in the middle of the answer.")

    def _report(self, outcome: PlanOutcome) -> CompletionReport:
        return CompletionReport(
            query_id=self._query_id,
            outcome=outcome,
            cached_tokens=self._prefill.cached_tokens,
            computed_tokens=self._prefill.prompt_tokens - self._prefill.cached_tokens,
            completion_tokens=self._completion_tokens,
            prefill_ms=self._prefill.prefill_ms,
            lost=() if self._told else self._prefill.lost,
        )

    async def _tell_prefilled(self, prefill: PrefillResult) -> None:
        try:
            await self._controller.prefilled(self._query_id, prefill.lost)
            self._told = True
        except UnknownPlan:
            log.debug("nothing_to_commit", query_id=self._query_id)
        except Exception as error:
            log.warning("prefill_not_told", query_id=self._query_id, error=repr(error))

    async def _release(self, outcome: PlanOutcome) -> None:
        if self._admission is not None:
            # Settled before complete(), or a plan granted late would find its release already behind it.
            self._admission.cancel()
            await asyncio.wait({self._admission}, timeout=_CLOSE_TIMEOUT_S)
        if self._reading is not None:
            await self._read_to_the_end(self._reading)
        for iterator in reversed(self._iterators):
            await self._close(iterator)
        if self._notice is not None:
            # The controller hears of the beginning before it hears of the end.
            await asyncio.wait({self._notice}, timeout=_CLOSE_TIMEOUT_S)
        if self._nothing_granted():
            return
        try:
            # What is lost is told once: another plan may have brought it back since.
            await self._controller.complete(self._report(outcome))
        except UnknownPlan:
            # Its wait was given up when the admission was cancelled, or it never got that far.
            log.debug("nothing_to_release", query_id=self._query_id)
        except Exception as error:
            log.warning("lease_not_released", query_id=self._query_id, error=repr(error))

    async def _read_to_the_end(self, reading: asyncio.Task[None]) -> None:
        """End a speculative plan, and hear what its last step says; its stream must not be read when it is closed."""
        if not reading.done() and self._end is not None:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._end(self._query_id)
                    await asyncio.wait({reading})
            except Exception as error:
                log.warning("speculation_not_ended", query_id=self._query_id, error=repr(error))
        reading.cancel()
        await asyncio.wait({reading}, timeout=_CLOSE_TIMEOUT_S)

    def _nothing_granted(self) -> bool:
        """Whether nothing was asked for, or it came to None; what failed or was cancelled may be a plan over there."""
        if self._admission is None:
            return True
        if not self._admission.done() or self._admission.cancelled():
            return False
        # Asked for its error in any case, or the loop complains that nobody did.
        return self._admission.exception() is None and self._admission.result() is None

    async def _close(self, iterator: AsyncIterator[Any]) -> None:
        aclose = getattr(iterator, "aclose", None)
        if aclose is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await aclose()
        except Exception as error:
            log.warning("stream_not_closed", error=repr(error))
