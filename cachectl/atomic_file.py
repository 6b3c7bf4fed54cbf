"""Writes files atomically."""

import contextlib
import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader finds the old text or the new. Raises OSError."""
    # In the same folder, so that it can be renamed. Not by tempfile, whose files other users cannot read.
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
