"""What checks found."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

_LONGEST = 400


class Status(StrEnum):
    """How a check ended. A warning comes with advice, and does not count as a failure."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"


class Outcome(NamedTuple):
    """What one check found: its ``figure`` for people, and ``why`` it did not pass, in one sentence."""

    status: Status
    figure: str = ""
    why: str = ""

    @classmethod
    def passed(cls, figure: str = "") -> "Outcome":
        """All is well."""
        return cls(Status.PASSED, figure)

    @classmethod
    def failed(cls, why: str, figure: str = "") -> "Outcome":
        """Something is wrong."""
        return cls(Status.FAILED, figure, one_line(why))

    @classmethod
    def warning(cls, why: str, figure: str = "") -> "Outcome":
        """All works, and ``why`` is advice."""
        return cls(Status.WARNING, figure, one_line(why))

    @classmethod
    def skipped(cls, why: str) -> "Outcome":
        """There was nothing to check."""
        return cls(Status.SKIPPED, "", one_line(why))


class CheckResult(msgspec.Struct, frozen=True):
    """The outcome of a check, by its name."""

    name: str
    status: Status
    figure: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True):
    """The results of all checks, in their order; ``passed`` if none has failed."""

    passed: bool
    checks: tuple[CheckResult, ...]

    @property
    def failures(self) -> list[CheckResult]:
        """The checks that failed."""
        return [check for check in self.checks if check.status is Status.FAILED]

    @classmethod
    def of(cls, checks: Iterable[CheckResult]) -> "Diagnosis":
        """The diagnosis of checks."""
        found = tuple(checks)
        return cls(all(check.status is not Status.FAILED for check in found), found)


def one_line(text: str) -> str:
    """Return text on one line, cut if it is very long."""
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
