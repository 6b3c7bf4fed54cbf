"""Searches: for the documents of a query, and without generation."""

import time
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.context import QueryContext
from gateway.query.tracing import SearchTrace, Tracing
from gateway.query.transcript import NOTHING_FOUND
from gateway.settings import GatewaySettings
from gateway.tasks import BackgroundTasks, Deadline, close_iterator, finish_iterator
from gateway.wire.reply import SearchTimings
from protocol.errors import InternalError, NoDocuments, UnknownCollection
from protocol.parts import Retriever
from protocol.retrieval import CandidateSet, SearchRequest


class Search:
    """One search. Close it in any case."""

    def __init__(
        self, retriever: Retriever, deadline: Deadline, metrics: GatewayMetrics, tasks: BackgroundTasks
    ) -> None:
        self._retriever = retriever
        self._deadline = deadline
        self._metrics = metrics
        self._tasks = tasks
        self._open: AsyncGenerator[CandidateSet] | None = None
        self._found: CandidateSet | None = None

    @property
    def documents(self) -> CandidateSet:
        """The final documents. Raises InternalError if the search ended without them."""
        if self._found is None or not self._found.final:
            raise InternalError("The search ended without its final documents.")
        return self._found

    def close(self) -> None:
        """End the search in the background, if it has not ended."""
        if self._open is not None:
            self._tasks.start(close_iterator(self._open))

    async def stages(self, trace: SearchTrace) -> AsyncGenerator[CandidateSet]:
        """The stages, up to the final one. Call it once. Raises what ``Retriever.search`` raises, DeadlineExceeded."""
        stages = self._open = self._retriever.search(trace.request)
        before_ms = 0.0
        async for found in self._deadline.each(stages):
            self._metrics.stage(found, (found.elapsed_ms - before_ms) / 1000)
            before_ms = found.elapsed_ms
            if found.final:
                # The end of the stream is a separate message, which nobody need wait for.
                self._tasks.start(finish_iterator(stages))
                self._open = None
                if found.missing_shards:
                    self._metrics.partial.inc()
            yield self._record(found, trace)
            if found.final:
                return

    def _record(self, found: CandidateSet, trace: SearchTrace) -> CandidateSet:
        self._found = found
        trace.found(found)
        return found


class QuerySearch(Search):
    """One query's search."""

    def __init__(self, context: QueryContext) -> None:
        super().__init__(context.parts.retriever, context.deadline, context.metrics, context.tasks)
        self._context = context

    async def of(self, request: SearchRequest) -> AsyncGenerator[CandidateSet]:
        """The search's stages, the last one final. Raises what ``Retriever.search`` raises, and DeadlineExceeded.

        If the query's documents are optional, an unknown or empty collection yields one final stage without documents.
        """
        trace = self._context.trace.retrieval(request)
        try:
            async for found in self.stages(trace):
                yield found
        except (UnknownCollection, NoDocuments):
            if not self._context.query.documents_optional:
                raise
            yield self._record(NOTHING_FOUND, trace)

    def _record(self, found: CandidateSet, trace: SearchTrace) -> CandidateSet:
        self._context.transcript.searched(found)
        return super()._record(found, trace)


@dataclass(frozen=True)
class Searches:
    """Runs searches that nothing is generated from."""

    retriever: Retriever
    metrics: GatewayMetrics
    tasks: BackgroundTasks
    settings: GatewaySettings
    tracing: Tracing

    async def run(self, request: SearchRequest) -> tuple[CandidateSet, SearchTimings]:
        """The final candidates of a search, and its times.

        Raises what ``Retriever.search`` raises, and DeadlineExceeded.
        """
        began = time.monotonic()
        deadline = Deadline(self.settings.query_timeout_s, "The search did not end")
        with (
            self.tracing.search(request) as trace,
            closing(Search(self.retriever, deadline, self.metrics, self.tasks)) as search,
        ):
            ends_ms = [found.elapsed_ms async for found in search.stages(trace)]
            found, total_ms = search.documents, 1000 * (time.monotonic() - began)
        return found, SearchTimings(found.elapsed_ms, tuple(ends_ms), total_ms)
