"""Files of JSON objects, one per line, which may be gzipped."""

from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from examine.evaluation.question_file import numbered_lines
from protocol.errors import ConfigError

T = TypeVar("T")


class JsonLines(Generic[T]):
    """A file of JSON objects of type ``record``, one per line. Empty lines are skipped.

    Reading raises ConfigError with the file, the line number from 1, and the fault.
    """

    def __init__(self, path: Path, record: type[T]) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(record)

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line's number and record."""
        for number, line in numbered_lines(self.path):
            try:
                record = self._decoder.decode(line)
            # Invalid UTF-8 raises UnicodeDecodeError, which is not one of msgspec's errors.
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self.fault(number, str(error)) from error
            yield number, record

    def fault(self, number: int, what: str) -> ConfigError:
        """Return the error for a line."""
        return ConfigError(f"{self.path}, line {number}: {what}")
