"""A campaign: attack a stack from all sources at once, while the judge asks and the watcher looks."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from ragtree_lab.fuzz.drawing import Drawing
from ragtree_lab.fuzz.judge import Judge
from ragtree_lab.fuzz.keeper import Keeper
from ragtree_lab.fuzz.requests import Drawn, Request
from ragtree_lab.fuzz.sender import Outcome, Sender
from ragtree_lab.fuzz.sources import Lane
from ragtree_lab.fuzz.verdicts import ENGINE_DIED, faults
from ragtree_lab.fuzz.watcher import Watcher

_RECENT_S = 2.0
"""What had ended for less than this when something broke may have broken it."""
_SETTLED_S = 1.5
"""So long after a fault it is known whether a process had ended."""
AFTERMATH_S = 10.0
"""So long after the end of a process, faults are taken for its consequences."""
_NOT_READY_S = 1.0
_LARGEST_TRACE = 400


class _Tried(NamedTuple):
    """An input that was sent, and when it began and ended; it has not ended if that is infinite."""

    drawn: Drawn
    begun: float
    ended: float


class Trace:
    """What is under way, and what has just ended."""

    def __init__(self) -> None:
        self._open: dict[int, _Tried] = {}
        self._ended: deque[_Tried] = deque(maxlen=_LARGEST_TRACE)

    def begin(self, drawn: Drawn) -> None:
        """Note that an input is sent."""
        self._open[id(drawn)] = _Tried(drawn, time.monotonic(), float("inf"))

    def end(self, drawn: Drawn) -> None:
        """Note that all its requests have ended."""
        self._ended.append(self._open.pop(id(drawn))._replace(ended=time.monotonic()))

    def suspects(self) -> list[Drawn]:
        """The inputs that are under way or have just ended, the oldest first."""
        since = time.monotonic() - _RECENT_S
        # Copies, because the watcher's thread asks, too.
        tried = [*self._open.copy().values(), *(each for each in self._ended.copy() if each.ended >= since)]
        return [each.drawn for each in sorted(tried, key=lambda each: each.begun)]


class Campaign:
    """Sends what ``drawing`` draws with ``sender``, lane by lane. ``keeper`` keeps what broke something.

    While the stack is not ready, nothing is sent: one run finds more than the first fault.
    """

    def __init__(
        self, drawing: Drawing, sender: Sender, watcher: Watcher, judge: Judge, keeper: Keeper, trace: Trace
    ) -> None:
        self._drawing = drawing
        self._sender = sender
        self._watcher = watcher
        self._judge = judge
        self._keeper = keeper
        self._trace = trace
        self._tasks: set[asyncio.Task[None]] = set()
        self.inputs: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        """By source, how many inputs and requests were tried."""
        self.files = 0
        self.statuses: Counter[str] = Counter()
        """How many answers had each status; without an answer, how the connection ended."""

    async def attack(self, lanes: Sequence[Lane], seconds: float, pause_s: float, most: int | None = None) -> None:
        """Attack for so many seconds, or until cancelled, or with at most ``most`` inputs of each lane.

        The judge pauses ``pause_s`` between its questions.
        """
        watching = asyncio.create_task(self._judge.watch(pause_s))
        try:
            async with asyncio.timeout(seconds):
                async with asyncio.TaskGroup() as group:
                    for lane in lanes:
                        group.create_task(self._follow(lane, most))
        except TimeoutError:
            pass
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _follow(self, lane: Lane, most: int | None) -> None:
        """Try a lane's sources in turn, with as many inputs under way as it has clients."""
        free = asyncio.Semaphore(lane.clients)
        drawn = {source: self._drawing.inputs(source) for source in lane.sources}
        count = 0
        try:
            while most is None or count < most:
                if not self._watcher.is_ready:
                    await self._watcher.until_ready(_NOT_READY_S)
                    continue
                given = await anext(drawn[lane.sources[count % len(lane.sources)]])
                count += 1
                await free.acquire()
                task = asyncio.create_task(self._try(given, free))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for generator in drawn.values():
                await generator.aclose()

    async def _try(self, drawn: Drawn, free: asyncio.Semaphore) -> None:
        self._trace.begin(drawn)
        try:
            outcomes = await asyncio.gather(*(self._send(request) for request in drawn.input.requests))
        finally:
            self._trace.end(drawn)
            free.release()
        self._count(drawn, outcomes)
        found = dict.fromkeys(
            fault
            for request, outcome in zip(drawn.input.requests, outcomes, strict=True)
            for fault in faults(request, outcome)
        )
        if found:
            suspects = self._trace.suspects()
            await asyncio.sleep(_SETTLED_S)
            # With a process that has ended, all requests end. What ended it is among its suspects.
            if not self._watcher.died_since(min(outcome.begun for outcome in outcomes) - AFTERMATH_S):
                for fault in found:
                    # The engine may have died by any request that it had.
                    self._keeper.keep(fault, suspects if ENGINE_DIED in fault else [drawn])

    async def _send(self, request: Request) -> Outcome:
        if request.starts_s:
            await asyncio.sleep(request.starts_s)
        return await self._sender.send(request)

    def _count(self, drawn: Drawn, outcomes: Sequence[Outcome]) -> None:
        self.inputs[drawn.source] += 1
        self.requests[drawn.source] += len(outcomes)
        self.files += drawn.input.files
        for outcome in outcomes:
            for answer in outcome.answers:
                self.statuses[str(answer.status)] += 1
            if not outcome.answers:
                self.statuses[outcome.end] += 1
