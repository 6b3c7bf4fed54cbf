"""The end of a log that may still grow."""

import re
from pathlib import Path

_BYTES = 16_384
_LONGEST = 400
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


def last_lines(file: Path, count: int) -> list[str]:
    """Return the last ``count`` lines that are not empty, without control characters, long ones cut.

    Only the end of the file is read.
    """
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - _BYTES))
        text = log.read().decode(errors="replace")
    # Progress bars overwrite their line.
    lines = [_CONTROLS.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n")]
    return [line[:_LONGEST] for line in lines if line][-count:]
