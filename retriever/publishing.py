"""Files that are there whole or not at all, whenever the machine stops."""

import os
import tempfile
from pathlib import Path


def publish(path: Path, *parts: bytes) -> None:
    """Write a file in one step: a reader finds the old one or the new one. Its folder is made. Raises OSError.

    A crash may leave a ``*.tmp`` beside it. That the new name is kept, only ``sync`` of the folder makes sure.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Have what was written to a file, or what a folder names, survive a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
