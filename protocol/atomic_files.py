"""Write files atomically."""

import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, *parts: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step: a reader sees the old content or the new. Creates its folder. Raises OSError.

    A new file has the permissions ``mode``, less the process's umask. A crash may leave a ``*.tmp`` file beside it.
    Call ``fsync`` on the folder to make the new name survive a power loss.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that it can be renamed.
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it survives a power loss. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
