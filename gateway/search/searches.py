"""Searches without generation."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.tracing import Tracing
from gateway.search.search_stages import SearchStages
from gateway.settings import GatewaySettings
from gateway.wire.search import SearchTimings
from protocol.errors import InternalError
from protocol.parts import Retriever
from protocol.retrieval import CandidateSet, SearchRequest


class Found(NamedTuple):
    """The final candidates of a search, and its times."""

    candidates: CandidateSet
    timings: SearchTimings


class Searches:
    """Runs searches that nothing is generated from. ``clock`` returns monotonic seconds."""

    def __init__(
        self,
        retriever: Retriever,
        metrics: GatewayMetrics,
        tasks: BackgroundTasks,
        settings: GatewaySettings,
        tracing: Tracing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._retriever = retriever
        self._metrics = metrics
        self._tasks = tasks
        self._settings = settings
        self._tracing = tracing
        self._clock = clock

    async def run(self, request: SearchRequest) -> Found:
        """Search to the end. Raises what ``Retriever.search`` raises, and DeadlineExceeded."""
        began = self._clock()
        deadline = Deadline(self._settings.query_timeout_s, "The search did not end")
        ends_ms: list[float] = []
        with (
            self._tracing.search(request) as trace,
            closing(SearchStages(self._retriever, deadline, self._metrics, self._tasks)) as stages,
        ):
            async for found in stages.of(trace.request):
                trace.found(found)
                ends_ms.append(found.elapsed_ms)
                if found.final:
                    total_ms = 1000 * (self._clock() - began)
                    return Found(found, SearchTimings(found.elapsed_ms, tuple(ends_ms), total_ms))
        raise InternalError("The search ended without its final documents.")
