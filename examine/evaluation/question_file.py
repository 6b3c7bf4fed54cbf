"""A user's file of questions."""

from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from examine.measuring.json_lines import JsonLines
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
    """Read a file of JSON lines, plain or gzipped; the first ``limit`` questions if it is given.

    All lines are checked. Raises ConfigError with the first faulty lines, or if the file has no question.
    """
    decoder = msgspec.json.Decoder(AskedQuestion)
    lines = JsonLines(file, AskedQuestion)
    questions, faults = [], []
    for number, line in lines.lines():
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
