"""Runs benchmarks one after another, and keeps their report up to date."""

import shlex
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from examine.evaluation.evaluation import REPORT_TEXT
from ragtree_lab.suite.catalogue import Benchmark
from ragtree_lab.suite.child import Child, Left
from ragtree_lab.suite.facts import Facts
from ragtree_lab.suite.log_tail import last_lines
from ragtree_lab.suite.outcome import Outcome, Status
from ragtree_lab.suite.report import render
from ragtree_lab.suite.suite_folder import SuiteFolder

_LOG_LINES = 15


class Watcher(Protocol):
    """Who is told how a suite proceeds."""

    def began(self, name: str, number: int, total: int) -> None:
        """A benchmark begins, the ``number``-th of ``total``."""

    def says(self, line: str) -> None:
        """The last line of its log; often the same again."""

    def ended(self, outcome: Outcome) -> None:
        """It ended, or was skipped."""


class Suite:
    """Runs each benchmark in a process of its own, so that its engines and memory are gone before the next.

    ``launcher`` is the command to which a benchmark's name and options are added. ``outcomes`` has what became of the
    benchmarks so far.
    """

    def __init__(
        self,
        launcher: Sequence[str],
        folder: SuiteFolder,
        facts: Facts,
        watcher: Watcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._launcher = tuple(launcher)
        self._folder = folder
        self._facts = facts
        self._watcher = watcher
        self._clock = clock

    def run(self, benchmarks: Sequence[Benchmark], data: Path, quick: bool) -> None:
        """Run the benchmarks; a failure of one does not stop the others.

        The report is written after each. It is complete as far as the suite has come, also if an exception, such as
        that of a signal, ends the suite. Raises OSError if the folder cannot be written to.
        """
        names = [benchmark.name for benchmark in benchmarks]
        self._write(names)
        for number, benchmark in enumerate(benchmarks, start=1):
            self._watcher.began(benchmark.name, number, len(names))
            try:
                self._measure(benchmark, data, quick)
            finally:
                self._write(names)
            self._watcher.ended(self.outcomes[-1])

    def _measure(self, benchmark: Benchmark, data: Path, quick: bool) -> None:
        name = benchmark.name
        arguments = benchmark.arguments(data, quick, self._folder.picture(name))
        command = shlex.join(["ragtree", "bench", *arguments])
        missing = benchmark.missing(data)
        if missing:
            self.outcomes.append(Outcome(name, command, 0.0, Status.SKIPPED, missing))
            return
        began = self._clock()
        child = Child([*self._launcher, *arguments], self._folder.log(name))
        done = False
        try:
            child.wait(self._watcher.says)
            done = True
        finally:
            left = child.finish()
            if left.result is not None:
                self._folder.write(self._folder.result(name).name, msgspec.json.encode(left.result))
            status, why = _judged(left) if done else (Status.ENDED, "it was ended before it was done")
            log = tuple(last_lines(self._folder.log(name), _LOG_LINES)) if status is Status.FAILED else ()
            self.outcomes.append(Outcome(name, command, self._clock() - began, status, why, log, left.result))

    def _write(self, names: Sequence[str]) -> None:
        to_come = names[len(self.outcomes) :]
        self._folder.write(REPORT_TEXT, render(self._facts, self.outcomes, to_come, self._folder).encode())


def _judged(left: Left) -> tuple[Status, str]:
    if left.status > 0:
        return Status.FAILED, f"it ended with exit status {left.status}"
    if left.status < 0:
        return Status.FAILED, f"{signal.Signals(-left.status).name} ended it"
    return (Status.FAILED, "it printed no result") if left.result is None else (Status.MEASURED, "")
