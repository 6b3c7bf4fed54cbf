"""Read files of questions and traces, as JSON lines."""

from pathlib import Path
from typing import TypeVar

import msgspec

from loadtest.errors import BadOption

T = TypeVar("T", bound=msgspec.Struct)


class Question(msgspec.Struct, frozen=True):
    """A line of a question file."""

    query: str


class TracedQuestion(msgspec.Struct, frozen=True):
    """A line of a trace: ``query`` is asked ``at`` seconds after the start."""

    at: float
    query: str


def read_questions(path: Path) -> list[str]:
    """Read the questions of a file. Raises BadOption."""
    return [line.query for line in _read(path, Question)]


def read_trace(path: Path) -> list[TracedQuestion]:
    """Read a trace, sorted by time. Raises BadOption."""
    lines = sorted(_read(path, TracedQuestion), key=lambda line: line.at)
    if lines[0].at < 0:
        raise BadOption(f"{path}: times must not be negative")
    return lines


def _read(path: Path, kind: type[T]) -> list[T]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadOption(f"{path}: {error.strerror}") from error
    lines = []
    for number, line in enumerate(raw.splitlines(), 1):
        if line.strip():
            try:
                lines.append(msgspec.json.decode(line, type=kind))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadOption(f"{path}, line {number}: {error}") from error
    if not lines:
        raise BadOption(f"{path} has no lines")
    return lines
