"""Write files atomically."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, *parts: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new. Creates its folder. Raises OSError.

    A crash may leave a ``*.tmp`` file beside it. Call ``fsync`` on the folder to make the new name survive a power
    loss.
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


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it survives a power loss. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
