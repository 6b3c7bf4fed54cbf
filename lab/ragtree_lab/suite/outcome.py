"""What became of the benchmarks of a suite."""

from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    """How a benchmark ended. ``ENDED`` means that it was ended together with the suite, before it was done."""

    MEASURED = "measured"
    SKIPPED = "skipped"
    FAILED = "failed"
    ENDED = "ended"


class Outcome(msgspec.Struct, frozen=True):
    """A benchmark's command, how many ``seconds`` it took, and the object that it printed.

    ``why`` says in one sentence why it was not measured, and is empty if it was. ``log`` has the last lines of the log
    of a failed one. A benchmark that was not measured has a ``result`` if it printed what it had measured so far.
    """

    name: str
    command: str
    seconds: float
    status: Status
    why: str = ""
    log: tuple[str, ...] = ()
    result: dict[str, Any] | None = None


class SuiteResult(msgspec.Struct, frozen=True):
    """The report's folder, and all benchmarks that were begun or skipped, in their order."""

    folder: str
    benchmarks: list[Outcome]
