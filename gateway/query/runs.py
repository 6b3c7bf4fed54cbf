"""Queries under way: each a task of its own, which its request reads from and may cancel."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import structlog

from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.transcript import Transcript
from gateway.wire.events import Event, QueryCompleted, RetrievalCompleted
from gateway.wire.reply import Reply
from protocol.errors import InternalError, RagtreeError, Unavailable

log = structlog.get_logger(__name__)


class QueryRun:
    """One query under way: a task drives the pipeline, its events wait here until the request takes them.

    The buffer needs no bound: ``max_tokens`` bounds the answer, and a slow reader must not slow the engine.
    """

    def __init__(self, source: AsyncGenerator[Event], transcript: Transcript) -> None:
        self.transcript = transcript
        self.error: RagtreeError | None = None
        self._source = source
        self._buffer: asyncio.Queue[Event | None] = asyncio.Queue()
        self._startable = asyncio.Event()
        # The task takes this context along, and hands it on: all that is logged on the query's behalf names it.
        with structlog.contextvars.bound_contextvars(query_id=transcript.query.query_id):
            self.task = asyncio.create_task(self._drive())
        # Not a finally in _drive: a task cancelled before its first step never enters it.
        self.task.add_done_callback(self._end)

    async def started(self) -> None:
        """Return when a response may start: the documents are final and the queue has not refused.

        Raises what went wrong until then, while it can still be a status.
        """
        await self._startable.wait()
        if self.error is not None:
            raise self.error

    async def events(self) -> AsyncIterator[Event]:
        """The query's events; raises its error at their end. To be read once."""
        while (event := await self._buffer.get()) is not None:
            yield event
        if self.error is not None:
            raise self.error

    async def reply(self) -> Reply:
        """The whole answer; raises whatever kept it from completing."""
        async for event in self.events():
            if isinstance(event, QueryCompleted):
                return event.response
        raise InternalError("The query ended without an answer.")

    def cancel(self) -> None:
        """Stop the query wherever it is; does nothing once it has ended."""
        self.task.cancel()

    async def _drive(self) -> None:
        try:
            async for event in self._source:
                self._buffer.put_nowait(event)
                if isinstance(event, RetrievalCompleted):
                    self._startable.set()
        except RagtreeError as error:
            self.error = error
        except Exception:
            log.exception("query_defect")
            self.error = InternalError("Something went wrong inside RAGTree; its log says what.")

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.error = Unavailable("The query was cancelled.")
        self._buffer.put_nowait(None)
        self._startable.set()


class QueryRuns:
    """Starts queries and knows those under way. ``on_error`` hears of each that failed."""

    def __init__(
        self,
        pipeline: QueryPipeline,
        on_error: Callable[[RagtreeError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._on_error = on_error
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, query: Query) -> QueryRun:
        """Set a query going."""
        transcript = Transcript(query, self._clock)
        run = QueryRun(self._pipeline.run(transcript), transcript)
        self._tasks.add(run.task)
        self._busy.set()
        self._quiet.clear()
        run.task.add_done_callback(lambda task: self._ended(task, run))
        return run

    async def arrival(self) -> None:
        """Return as soon as a query is under way."""
        await self._busy.wait()

    async def lull(self) -> None:
        """Return as soon as no query is under way."""
        await self._quiet.wait()

    async def shutdown(self) -> None:
        """Cancel what is still under way and wait until it has let go."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _ended(self, task: asyncio.Task[None], run: QueryRun) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._busy.clear()
            self._quiet.set()
        if run.error is not None:
            self._on_error(run.error)
