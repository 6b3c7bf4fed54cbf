"""Output streams of the command line: results on standard output, everything else on standard error."""

import time
from collections.abc import Callable
from types import TracebackType

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LINE_EVERY_S = 30.0

results = Console(highlight=False)
errors = Console(stderr=True, highlight=False)
tables = Console(width=240, highlight=False)
"""Results that people copy names from: a narrow terminal wraps their lines, so that no cell is cut for it."""


def progress_bar(console: Console | None = None) -> Progress:
    """Return a progress bar with a name, a count, the elapsed time and the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console or errors,
    )


def print_json(result: msgspec.Struct) -> None:
    """Print a result as one JSON object on one line."""
    print(msgspec.json.encode(result).decode())


class StepBars:
    """One progress bar per step of a long task. Call it with (step, done, total); use it as a context manager.

    Without a terminal it prints a line at the start and end of each step, and one every 30 seconds. ``console`` is
    where it prints, by default standard error.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, console: Console | None = None) -> None:
        self._console = console or errors
        self._progress = progress_bar(self._console)
        self._clock = clock
        self._bars: dict[str, TaskID] = {}
        self._said_at: dict[str, float] = {}

    def __enter__(self) -> "StepBars":
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def __call__(self, step: str, done: int, total: int | None) -> None:
        """Show the progress of a step. A ``total`` of None means unknown."""
        if not self._console.is_terminal:
            self._say(step, done, total)
            return
        if step not in self._bars:
            self._bars[step] = self._progress.add_task(step, total=total)
        self._progress.update(self._bars[step], completed=done, total=total)

    def _say(self, step: str, done: int, total: int | None) -> None:
        now = self._clock()
        if step in self._said_at and done != total and now < self._said_at[step] + _LINE_EVERY_S:
            return
        self._said_at[step] = now
        self._console.print(f"{step}: {done}" + ("" if total is None else f" of {total}"), highlight=False)
