"""A user's file of questions."""

import gzip
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from protocol.errors import ConfigError

_MOST_FAULTS = 10


class AskedQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file: a question, its right ``answers``, and the gold documents, which hold the answer.

    Without answers or documents, it does not count where they are needed. ``id`` is the user's own and is not read.
    Other fields are refused, because a misspelt one would go unnoticed.
    """

    question: str
    answers: tuple[str, ...] = ()
    document_ids: tuple[str, ...] = ()
    id: str | int | None = None

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError("the question is empty")
        if not all(answer.strip() for answer in self.answers):
            raise ValueError("an answer is empty")
        if not all(self.document_ids):
            raise ValueError("a document id is empty")


class NumberedQuestion(NamedTuple):
    """A question and the number of its line, from 1."""

    line: int
    asked: AskedQuestion


def read_questions(file: Path, limit: int | None = None) -> list[NumberedQuestion]:
    """Read a file of JSON lines; the first ``limit`` questions if it is given.

    All lines are checked. Raises ConfigError with the first faulty lines, or if the file has no question.
    """
    decoder = msgspec.json.Decoder(AskedQuestion)
    questions, faults = [], []
    for number, line in numbered_lines(file):
        try:
            questions.append(NumberedQuestion(number, decoder.decode(line)))
        # Invalid UTF-8 raises UnicodeDecodeError, which is not one of msgspec's errors.
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            faults.append(f"line {number}: {error}")
    if faults:
        more = [f"and {len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
        shown = "\n".join(f"  {fault}" for fault in [*faults[:_MOST_FAULTS], *more])
        raise ConfigError(f"{file} is not a file of questions:\n{shown}", param="dataset")
    if not questions:
        raise ConfigError(f"{file} has no question", param="dataset")
    return list(islice(questions, limit))


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank, with its number from 1, of a file that may be gzipped.

    Raises ConfigError with the file and the line if it cannot be read.
    """
    number = 0
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            lines = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if gzipped else file
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}, line {number + 1}: cannot be read: {error}") from error
