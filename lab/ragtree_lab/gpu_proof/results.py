"""What the checks found: their results, the report file and the table."""

from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from examine.doctor.outcome import Status
from protocol.atomic_files import write_atomically


class CheckResult(msgspec.Struct, frozen=True):
    """One check's result. ``figure`` is what it measured, ``why`` the reason if it did not pass."""

    name: str
    level: int
    status: Status
    seconds: float = 0.0
    figure: str = ""
    why: str = ""


class Event(msgspec.Struct, frozen=True):
    """What a process tells: the name of a check that has ``begun``, or the ``result`` of the one that has ended."""

    begun: str = ""
    result: CheckResult | None = None


class Report(msgspec.Struct, frozen=True):
    """Everything that a run found."""

    machine: dict[str, Any]
    options: dict[str, Any]
    seconds: float
    checks: list[CheckResult]

    @property
    def proves(self) -> bool:
        """Whether at least one check passed and none failed."""
        statuses = {check.status for check in self.checks}
        return Status.PASSED in statuses and Status.FAILED not in statuses

    def write(self, file: Path) -> None:
        """Write the report as one JSON object. A report that is there already is replaced whole."""
        write_atomically(file, msgspec.json.format(msgspec.json.encode(self), indent=2), b"\n", mode=0o644)

    def table(self) -> Table:
        """The checks, one in a row."""
        table = Table("level", "check", "status", "seconds", "figure", "why")
        colours = {Status.PASSED: "green", Status.FAILED: "red", Status.SKIPPED: "yellow"}
        for check in self.checks:
            status = f"[{colours[check.status]}]{check.status}[/]"
            table.add_row(str(check.level), check.name, status, f"{check.seconds:.1f}", check.figure, check.why)
        return table
