"""Queries that run, wait and end on one controller."""

import asyncio

import pytest
from controller_integrity import check_integrity
from controller_under_test import LEASE_S, Clock, ask, costs, report, waiting
from varied import varied

from cachectl.runtime.controller import LEASE_IN_QUERIES, Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from protocol.generation import StepBudget
from protocol.plans import PrefillPlan


class Turns:
    """A controller with short names for what these tests do with it. Integrity is checked whenever a query ends."""

    def __init__(
        self,
        instances: int = 1,
        gpu: int = 1000,
        host: int = 0,
        executor=None,
        engine_step: StepBudget | None = None,
        prefill_s: float = 1.0,
        **bounds: int | str,
    ) -> None:
        self.clock = Clock()
        self.controller = Controller(
            varied(ControllerSettings, **({"policy": "LRU", "max_running": 1, "max_queued": 10} | bounds)),
            [f"instance-{index}" for index in range(instances)],
            self.clock,
            Engines(costs(prefill_s=prefill_s), engine_step),
            KvStorage(Capacities(gpu, host)),
            executor=executor,
            query_timeout_s=LEASE_S / LEASE_IN_QUERIES,
        )

    async def runs(self, query_id: str, documents: str = "") -> None:
        """Admit a query that finds a free slot."""
        async with asyncio.timeout(0):
            await self.controller.admit(ask(query_id, documents, tokens=1))

    async def waits(self, query_id: str, documents: str = "", tokens: int = 1) -> asyncio.Task[PrefillPlan]:
        """A task that waits for its turn when this returns."""
        return await waiting(self.controller, ask(query_id, documents, tokens=tokens))

    async def ends(self, query_id: str) -> None:
        await self.controller.complete(report(query_id))
        check_integrity(self.controller)

    async def load(self) -> tuple[int, int]:
        """The numbers of running and of waiting queries."""
        stats = await self.controller.stats()
        return stats.running, stats.queued


async def cancelled(task: asyncio.Task[PrefillPlan]) -> None:
    """Assert that a task ends cancelled."""
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert task.cancelled()
