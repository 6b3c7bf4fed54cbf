"""Files of JSON objects, one per line, which may be gzipped."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, cast

import msgspec

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
        for number, line in self.lines():
            try:
                record = self._decoder.decode(line)
            # Invalid UTF-8 raises UnicodeDecodeError, which is not one of msgspec's errors.
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self.fault(number, str(error)) from error
            yield number, record

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line's number and bytes, without decoding."""
        number = 0
        try:
            with self.path.open("rb") as file:
                gzipped = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                lines = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if gzipped else file
                for number, line in enumerate(lines, start=1):
                    if not line.isspace():
                        yield number, line
        except (OSError, EOFError, zlib.error) as error:
            raise self.fault(number + 1, f"cannot be read: {error}") from error

    def fault(self, number: int, what: str) -> ConfigError:
        """Return the error for a line."""
        return ConfigError(f"{self.path}, line {number}: {what}")
