"""Running queries. Each is a task; its request reads the events and may cancel it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeAlias

import structlog

from gateway.query.pipeline import QueryPipeline
from gateway.query.query import Query
from gateway.query.transcript import Transcript
from gateway.wire.events import CacheResolved, Event, QueryCompleted, RetrievalCompleted
from gateway.wire.reply import Reply
from protocol.errors import InternalError, InvalidRequest, RagtreeError, Unavailable

log = structlog.get_logger(__name__)


class QueryRun:
    """One running query. Its task drives the pipeline and buffers the events for the request.

    The buffer is unbounded: ``max_tokens`` bounds the answer, and a slow reader must not slow the engine.
    """

    def __init__(self, source: AsyncGenerator[Event], transcript: Transcript) -> None:
        self.transcript = transcript
        self.error: RagtreeError | None = None
        self._source = source
        self._buffer: asyncio.Queue[Event | None] = asyncio.Queue()
        self._startable = asyncio.Event()
        # An engine may meet a schema that no answer can follow at its first token only.
        constrained = transcript.query.sampling.json_schema is not None
        self._starts: type[Event] = CacheResolved if constrained else RetrievalCompleted
        # The task and its child tasks inherit this context, so all their log lines name the query.
        with structlog.contextvars.bound_contextvars(query_id=transcript.query.query_id):
            self.task = asyncio.create_task(self._drive())
        # Not a finally in _drive: a task that is cancelled before its first step never enters it.
        self.task.add_done_callback(self._end)

    @property
    def query_id(self) -> str:
        """The query's id."""
        return self.transcript.query.query_id

    async def started(self) -> None:
        """Wait until a response may start: the documents are final, and the query was not refused.

        If the answer has to follow a schema, also wait for the engine's first step.

        Raises the query's error if it fails before, while the error can still become an HTTP status.
        """
        await self._startable.wait()
        if self.error is not None:
            raise self.error

    async def events(self) -> AsyncIterator[Event]:
        """The query's events, then its error if it failed. Call it once."""
        while (event := await self._buffer.get()) is not None:
            yield event
        if self.error is not None:
            raise self.error

    async def reply(self) -> Reply:
        """The complete answer. Raises the query's error if it failed."""
        async for event in self.events():
            if isinstance(event, QueryCompleted):
                return event.response
        raise InternalError("The query ended without an answer.")

    def cancel(self) -> None:
        """Cancel the query. Does nothing once it has ended."""
        self.task.cancel()

    async def _drive(self) -> None:
        try:
            async for event in self._source:
                self._buffer.put_nowait(event)
                if isinstance(event, self._starts):
                    self._startable.set()
        except InvalidRequest as error:
            self.error = self.transcript.query.in_callers_words(error)
        except RagtreeError as error:
            self.error = error
        except Exception:
            log.exception("query_defect")
            self.error = InternalError.logged()

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.error = Unavailable("The query was cancelled.")
        self.transcript.meter.ended()
        self._buffer.put_nowait(None)
        self._startable.set()


class QueryRuns:
    """Starts queries and tracks the running ones. Calls ``on_error`` with each query's error.

    ``busy`` is set while a query runs, and ``idle`` while none does.
    """

    def __init__(self, pipeline: QueryPipeline, on_error: Callable[[RagtreeError], None]) -> None:
        self._pipeline = pipeline
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self.busy = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, query: Query, charge: Callable[[int], None]) -> QueryRun:
        """Start a query. ``charge`` receives its tokens, in parts, as they are used."""
        transcript = Transcript(query, charge=charge)
        run = QueryRun(self._pipeline.run(transcript), transcript)
        self._tasks.add(run.task)
        self.busy.set()
        self.idle.clear()
        run.task.add_done_callback(lambda task: self._ended(task, run))
        return run

    async def shutdown(self) -> None:
        """Cancel the running queries, and any that they start, and wait until all have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks))

    def _ended(self, task: asyncio.Task[None], run: QueryRun) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self.busy.clear()
            self.idle.set()
        if run.error is not None:
            self._on_error(run.error)


class Choices:
    """The runs of ``count`` answers to one question, numbered from 0. If one fails, all end.

    The first run searches. The others start once its prompt is prefilled, so they rest on the same documents and find
    their KV. Each is a separate query to the other parts and in metrics. ``charge`` receives the tokens of all: those
    of the prompt once, as in their usage, and those of each answer.
    """

    def __init__(self, runs: QueryRuns, query: Query, count: int, charge: Callable[[int], None]) -> None:
        self.query_id = query.query_id
        self._starter = runs
        self._count = count
        self._charge = charge
        self._runs = [runs.start(query, charge)]
        self._buffer: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        self._error: RagtreeError | None = None
        self._cancelled = False
        self.task = asyncio.create_task(self._drive())

    async def started(self) -> None:
        """Wait until a response may start, as ``QueryRun.started`` does for the first run."""
        await self._runs[0].started()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """The events of all runs, each with its run's number, then the error of the run that failed. Call it once."""
        while (event := await self._buffer.get()) is not None:
            yield event
        if self._error is not None:
            raise self._error

    async def replies(self) -> tuple[Reply, ...]:
        """The complete answers. Raises the error of the run that failed."""
        replies: dict[int, Reply] = {}
        async for index, event in self.events():
            if isinstance(event, QueryCompleted):
                replies[index] = event.response
        return tuple(replies[index] for index in range(self._count))

    def cancel(self) -> None:
        """Cancel all runs. Does nothing to those that have ended."""
        self._cancelled = True
        for run in self._runs:
            run.cancel()

    async def _drive(self) -> None:
        try:
            async with asyncio.TaskGroup() as following:
                following.create_task(self._follow(0, following))
        except* RagtreeError as failed:
            self._error = next(error for error in failed.exceptions if isinstance(error, RagtreeError))
        except* Exception:
            log.exception("choices_defect", query_id=self.query_id)
            self._error = InternalError.logged()
        finally:
            self.cancel()
            # The tokens of each are charged by then.
            await asyncio.wait([run.task for run in self._runs])
            self._buffer.put_nowait(None)

    async def _follow(self, index: int, following: asyncio.TaskGroup) -> None:
        async for event in self._runs[index].events():
            self._buffer.put_nowait((index, event))
            if index == 0 and isinstance(event, CacheResolved) and not self._cancelled:
                for number in range(1, self._count):
                    other = self._runs[0].transcript.alternative(number)
                    self._runs.append(self._starter.start(other, self._charge))
                    following.create_task(self._follow(number, following))


Running: TypeAlias = QueryRun | Choices
"""The running queries of one request."""
