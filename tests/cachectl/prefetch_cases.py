"""Prefetches under test: an engine that records them, and queries that wait."""

import asyncio

from controller_under_test import ask, waiting

from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan


class Engine:
    """An executor that records prefills, and ends each one when the test says so."""

    def __init__(self) -> None:
        self.plans: list[PrefillPlan] = []
        self.cancelled: list[PrefillPlan] = []
        self._ends: list[asyncio.Future[PrefillResult | None]] = []

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        self.plans.append(plan)
        end = asyncio.get_running_loop().create_future()
        self._ends.append(end)
        try:
            return await end
        except asyncio.CancelledError:
            self.cancelled.append(plan)
            raise

    async def carry_out(self, instance, orders):
        return ()

    @property
    def prefetched(self) -> list[str]:
        """The documents of each prefetch."""
        return ["".join(segment.key for segment in plan.prompt.documents) for plan in self.plans]

    @property
    def works(self) -> bool:
        """Whether a prefill has not ended."""
        return any(not end.done() for end in self._ends)

    async def end(self, prefill: PrefillResult | None) -> None:
        """End the last prefill that has not ended."""
        next(end for end in reversed(self._ends) if not end.done()).set_result(prefill)
        await settled()

    async def fail(self, error: Exception) -> None:
        next(end for end in reversed(self._ends) if not end.done()).set_exception(error)
        await settled()


async def settled() -> None:
    """Everything that is ready to run has run, timers that are due included."""
    for _ in range(20):
        await asyncio.sleep(0)


async def decoding(controller, query_id: str, documents: str = "x") -> None:
    """A query that has its first token: it takes a slot, and nothing of the engine's steps."""
    await controller.admit(ask(query_id, documents))
    await controller.prefilled(query_id)


async def overdue(controller, request):
    """A task that has waited for its query's turn for longer than ``prepare_after_s``."""
    task = await waiting(controller, request)
    await settled()
    return task


async def gives_up(task) -> None:
    task.cancel()
    await settled()
