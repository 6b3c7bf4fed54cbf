"""The stack without its servers: a controller in this process and its engines, called as the gateway calls them."""

import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from cachectl.runtime.composing import GateFolder
from cachectl.runtime.executor import LiveEngine
from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings
from examine.measuring.engines import Generation, generate
from protocol.generation import PrefillResult, Sampling
from protocol.plans import AdmissionRequest, CompletionReport, ControllerStats, DocumentOrder, PlanOutcome, Reuse
from protocol.prompts import Prompt
from ragtree_lab.measuring.fixed_instances import FixedInstances

log = structlog.get_logger(__name__)


class LocalStack:
    """Answers prompts with the controller's plans. Create it with ``over``."""

    def __init__(self, live: LiveController, engines: Mapping[str, LiveEngine]) -> None:
        self._live = live
        self._engines = engines

    @classmethod
    @asynccontextmanager
    async def over(
        cls,
        engines: Mapping[str, LiveEngine],
        settings: ControllerSettings,
        profiles: Path,
        gates: GateFolder | None = None,
        kv_generators: Collection[str] = (),
    ) -> "AsyncGenerator[LocalStack]":
        """Make a stack over running engines, by the names that they were made with.

        Missing cost profiles are measured and saved in ``profiles``. Without ``gates``, composing passes no gate. Those
        of ``kv_generators`` only generate KV.
        """
        instances = FixedInstances(engines, kv_generators)
        live = LiveController(settings, instances, profiles, time.monotonic, time.time, gates)
        await live.start(lambda done, total: log.info("profiling the engine, once", probe=done, of=total))
        yield cls(live, engines)

    async def answer(
        self,
        prompt: Prompt,
        namespace: str,
        sampling: Sampling,
        order: DocumentOrder = DocumentOrder.RETRIEVAL,
        scores: tuple[float, ...] = (),
        reuse: Reuse | None = None,
        avoid: tuple[str, ...] = (),
    ) -> Generation:
        """Admit, generate and complete, like a query. The time to first token starts at the admission.

        The documents are in ``order``, which may depend on their search ``scores``. ``reuse`` is the controller's own
        if it is None. The prompt goes to none of the engines in ``avoid``. Raises what controller and engine raise.
        """
        controller = self._live.controller
        query_id = uuid4().hex
        arrived = time.perf_counter()
        request = AdmissionRequest(query_id, namespace, prompt, (), order, avoid, scores, reuse)
        plan = await controller.admit(request)
        queued_ms = (time.perf_counter() - arrived) * 1000
        report = CompletionReport(query_id, PlanOutcome.FAILED)

        async def prefilled(prefill: PrefillResult) -> None:
            # From here on the next query may be prefilled, and reuse this one's KV.
            await controller.prefilled(query_id, prefill.lost, prefill.reads)

        try:
            came = await generate(self._engines[plan.instance], plan, sampling, prefilled)
            prefill = came.prefill
            report = CompletionReport(
                query_id,
                PlanOutcome.COMPLETED,
                cached_tokens=prefill.cached_tokens,
                computed_tokens=prefill.computed_tokens,
                composed_tokens=prefill.composed_tokens,
                completion_tokens=came.tokens,
                prefill_ms=prefill.prefill_ms,
                unwritten=came.unwritten,
            )
        finally:
            await controller.complete(report)
        return msgspec.structs.replace(came, ttft_ms=came.ttft_ms + queued_ms)

    async def settle(self) -> None:
        """Wait until nothing is computed ahead any more, and no copies are pending."""
        await self._live.controller.computed_ahead()
        for engine in self._engines.values():
            # Answers only after all pending copies.
            await engine.residency()

    async def stats(self) -> ControllerStats:
        """Return the controller's counters and gauges."""
        return await self._live.controller.stats()
