"""The controller as a Ray Serve deployment: one replica, the single writer."""

import time

from cachectl.collector import collect_while_idle, spare_full_collections
from cachectl.controller import Controller
from cachectl.cost import DeviceProfile
from protocol.plans import AdmissionRequest, CompletionReport, ControllerStats, PrefillPlan, SpeculationDecision
from protocol.retrieval import CandidateSet
from services.config import Config

IDLE_CHECKS = 5


class ControllerDeployment:
    """Holds a ``Controller`` on the machine's monotonic clock."""

    def __init__(self, config: Config) -> None:
        cost = DeviceProfile.shipped("a10g-7b").prefill_seconds
        spare_full_collections()
        self._idle_checks = 0
        self._controller = Controller(config.controller, instances=["generator"], clock=time.monotonic, cost=cost)

    async def on_candidates(self, query_id: str, candidates: CandidateSet) -> SpeculationDecision:
        """Decide about provisional documents."""
        return await self._controller.on_candidates(query_id, candidates)

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn."""
        return await self._controller.admit(request)

    async def complete(self, report: CompletionReport) -> None:
        """Release a lease."""
        await self._controller.complete(report)

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        return await self._controller.stats()

    async def ready(self) -> None:
        """Return when queries can be admitted."""
        await self._controller.ready()

    async def check_health(self) -> None:
        """Serve's periodic call: the moment to take back what lost callers hold.

        A coroutine, for Serve runs plain functions in a thread, and the controller belongs to one event loop.
        """
        self._controller.expire_leases()
        # Five calls in a row, seconds apart, without anything to do: nobody will notice a pause.
        self._idle_checks = self._idle_checks + 1 if self._controller.idle else 0
        if self._idle_checks == IDLE_CHECKS:
            collect_while_idle()
