"""Several answers to one question, each by its own run."""

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from gateway.query.query import Query
from gateway.query.runs import QueryRuns
from gateway.wire.events import CacheResolved, Event, QueryCompleted
from gateway.wire.reply import Reply
from protocol.errors import InternalError, RagtreeError

log = structlog.get_logger(__name__)


class Choices:
    """The runs of ``count`` answers to one question, numbered from 0. If one of them fails, all of them end.

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
            # What each of them used is charged by then.
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
