"""Shows on a console how a suite of benchmarks proceeds."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner

from ragtree_lab.suite.outcome import Outcome, Status
from ragtree_lab.suite.report import duration

_LINE_EVERY_S = 30.0


class SuiteProgress:
    """A line for each benchmark, and below it what the running one says, on a terminal. Use it as a context manager.

    Elsewhere it prints what the running one says at most every 30 seconds, and only if it is new. The time left is not
    shown: it depends on the model and the machine, which nothing has measured before.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._spinner = Spinner("", console=console)
        self._began = self._benchmark_began = self._said_at = clock()
        self._title = self._said = ""

    def __enter__(self) -> "SuiteProgress":
        if self._console.is_terminal:
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._spinner.stop()

    def began(self, name: str, number: int, total: int) -> None:
        """Name the benchmark that begins, and the time so far."""
        self._title = f"{number} of {total}: {name}"
        self._benchmark_began = self._said_at = self._clock()
        if self._console.is_terminal:
            self.says("")
        else:
            self._print(f"{self._title} begins, {self._passed(self._began)} so far")

    def says(self, line: str) -> None:
        """Show the last line of the running benchmark's log."""
        if self._console.is_terminal:
            times = f"{self._passed(self._benchmark_began)}, {self._passed(self._began)} in all"
            room = max(0, self._console.width - len(self._title) - len(times) - 8)
            # Brackets in what it says are no markup.
            text = self._console.render_str(f"{self._title} ({times}) {line[:room]}", markup=False, highlight=False)
            self._spinner.update(text)
        elif line not in ("", self._said) and self._clock() >= self._said_at + _LINE_EVERY_S:
            self._said, self._said_at = line, self._clock()
            self._print(f"  {line}")

    def ended(self, outcome: Outcome) -> None:
        """Say how the benchmark ended."""
        why = f": {outcome.why}" if outcome.why else ""
        after = "" if outcome.status is Status.SKIPPED else f" after {duration(outcome.seconds)}"
        self._print(f"{self._title}, {outcome.status}{after}{why}")

    def _passed(self, since: float) -> str:
        return duration(self._clock() - since)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
