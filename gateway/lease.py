"""What a query holds of the other parts, and the one place where it gives all of that back."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import structlog

from protocol.errors import UnknownPlan
from protocol.parts import Controller
from protocol.plans import CompletionReport, PrefillPlan

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


class Releases:
    """The tasks that give leases back, held here so that they outlive the requests that started them.

    An ``await`` on a remote call in the ``finally`` of a cancelled request never runs to its end, so no request awaits
    its own release.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, release: Coroutine[Any, Any, None]) -> None:
        """Run a release to its end, whatever becomes of the caller."""
        # The loop itself holds tasks weakly.
        task = asyncio.create_task(release)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the releases under way, ``timeout_s`` seconds at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)


class Lease:
    """One query's hold on the parts: iterators to close, a place in the queue to give up, a plan to release."""

    def __init__(self, controller: Controller, releases: Releases) -> None:
        self._controller = controller
        self._releases = releases
        self._iterators: list[AsyncIterator[Any]] = []
        self._admission: asyncio.Task[PrefillPlan] | None = None
        self._released = False

    def closing(self, iterator: AsyncIterator[T]) -> AsyncIterator[T]:
        """The same iterator, to be closed at release: closing is what stops the work behind it."""
        self._iterators.append(iterator)
        return iterator

    def admission(self, admit: Coroutine[Any, Any, PrefillPlan]) -> asyncio.Task[PrefillPlan]:
        """The query's wait for its turn, given up at release."""
        self._admission = asyncio.create_task(admit)
        return self._admission

    def release(self, report: CompletionReport) -> None:
        """Give everything back, in the background and once; later calls do nothing."""
        if not self._released:
            self._released = True
            self._releases.start(self._release(report))

    async def _release(self, report: CompletionReport) -> None:
        if self._admission is not None:
            # Settled before complete(), or a plan granted late would find its release already behind it.
            self._admission.cancel()
            await asyncio.wait({self._admission}, timeout=_CLOSE_TIMEOUT_S)
            if self._admission.done() and not self._admission.cancelled():
                self._admission.exception()
        for iterator in reversed(self._iterators):
            await self._close(iterator)
        try:
            await self._controller.complete(report)
        except UnknownPlan:
            # Its wait was given up when the admission was cancelled, or it never got that far.
            log.debug("nothing_to_release", query_id=report.query_id)
        except Exception as error:
            log.warning("lease_not_released", query_id=report.query_id, error=repr(error))

    async def _close(self, iterator: AsyncIterator[Any]) -> None:
        aclose = getattr(iterator, "aclose", None)
        if aclose is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await aclose()
        except Exception as error:
            log.warning("stream_not_closed", error=repr(error))
