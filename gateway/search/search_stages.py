"""One search of the retriever, measured and bounded in time."""

from collections.abc import AsyncGenerator

from gateway.background_tasks import BackgroundTasks, close_iterator, finish_iterator
from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from protocol.parts import Retriever
from protocol.retrieval import CandidateSet, SearchRequest


class SearchStages:
    """The stages of one search. Close it in any case."""

    def __init__(
        self, retriever: Retriever, deadline: Deadline, metrics: GatewayMetrics, tasks: BackgroundTasks
    ) -> None:
        self._retriever = retriever
        self._deadline = deadline
        self._metrics = metrics
        self._tasks = tasks
        self._open: AsyncGenerator[CandidateSet] | None = None

    def close(self) -> None:
        """End the search in the background, if it has not ended."""
        if self._open is not None:
            self._tasks.start(close_iterator(self._open))

    async def of(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        """The stages, up to the final one. Call it once. Raises what ``Retriever.search`` raises, DeadlineExceeded."""
        stages = self._open = self._retriever.search(request)
        before_ms = 0.0
        async for found in self._deadline.each(stages):
            self._metrics.stage(found, (found.elapsed_ms - before_ms) / 1000)
            before_ms = found.elapsed_ms
            if found.final:
                # The end of the stream is a separate message, which nobody need wait for.
                self._tasks.start(finish_iterator(stages))
                self._open = None
                if found.missing_shards:
                    self._metrics.partial()
            yield found
            if found.final:
                return
