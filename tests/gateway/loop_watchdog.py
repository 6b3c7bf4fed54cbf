"""Tells what holds an event loop, and names the function.

What counts is CPU time of the loop's thread, so a busy machine holds nothing. Not counted are the collector's pauses,
which depend on the size of the test process, and what happens once in a process.
"""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary, StackSummary, walk_stack
from typing import NamedTuple
from unittest import mock

MOST_S = 0.005
_POLL_S = 0.001
_GATEWAY = str(Path(__file__).parents[2] / "gateway") + "/"
_ONCE = ("<frozen importlib", "/pydantic/_internal/", "/gateway/app.py", "/gateway/composition.py")
"""Files of what a process does once, at its first request or before: imports, schemas of bodies, the app's wiring."""


class Held(NamedTuple):
    """A callback that took ``seconds`` of CPU time, and the stack that was seen halfway."""

    seconds: float
    stack: StackSummary

    def __str__(self) -> str:
        innermost = StackSummary.from_list(self.stack[-12:])
        return f"held the loop for {self.seconds * 1000:.1f} ms:\n{''.join(innermost.format())}"


class LoopWatchdog:
    """The callbacks of a loop in which the gateway ``held`` it for longer than ``most_s``.

    Others do not count: tests run on the loop, too.
    """

    def __init__(self, most_s: float = MOST_S) -> None:
        self.held: list[Held] = []
        self._most_s = most_s
        self._began: float | None = None
        # By collections on the watched thread.
        self._collected_s = 0.0
        self._watched = 0
        self._seen: StackSummary | None = None
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator["LoopWatchdog"]:
        """Watch the loop of this thread."""
        watched, run = threading.get_ident(), asyncio.Handle._run
        self._watched = watched
        sampler = threading.Thread(target=self._sample, args=(watched,), daemon=True)

        def measured(handle: asyncio.Handle) -> None:
            if threading.get_ident() == watched:
                self._measure(lambda: run(handle))
            else:
                run(handle)

        gc.callbacks.append(self._collecting)
        sampler.start()
        try:
            with mock.patch.object(asyncio.Handle, "_run", measured):
                yield self
        finally:
            self._over.set()
            sampler.join()
            gc.callbacks.remove(self._collecting)

    def _measure(self, run: Callable[[], None]) -> None:
        collected_s, began = self._collected_s, time.thread_time()
        self._seen, self._began = None, began
        try:
            run()
        finally:
            self._began = None
            seconds = time.thread_time() - began - (self._collected_s - collected_s)
            if seconds > self._most_s and self._seen is not None and _of_gateway(self._seen):
                self.held.append(Held(seconds, self._seen))

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        # Other threads collect, too, and a callback may end meanwhile.
        if threading.get_ident() == self._watched:
            self._collected_s += time.thread_time() * (-1 if phase == "start" else 1)

    def _sample(self, watched: int) -> None:
        clock = time.pthread_getcpuclockid(watched)
        while not self._over.wait(_POLL_S):
            began = self._began
            if began is None or self._seen is not None:
                continue
            if time.clock_gettime(clock) - began > self._most_s / 2:
                stack = StackSummary.extract(walk_stack(sys._current_frames()[watched]), lookup_lines=False)
                stack.reverse()
                if self._began == began:
                    self._seen = stack


def _of_gateway(stack: list[FrameSummary]) -> bool:
    files = [frame.filename for frame in stack]
    once = any(part in file for file in files for part in _ONCE)
    return not once and any(file.startswith(_GATEWAY) for file in files)
