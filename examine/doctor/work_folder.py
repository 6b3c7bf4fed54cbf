"""A temporary folder that does not outlive its process for long, however that ends."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "ragtree-doctor-"


class WorkFolder:
    """A new folder at ``path`` below ``parent``, which its process holds locked until ``remove``.

    The kernel releases the lock with the process, so a folder that is not locked is a leftover of a killed one. Such
    folders of the same user are deleted first. Raises OSError if the folder cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        _sweep(parent)
        self.path, self._descriptor = _made(parent)

    def remove(self) -> None:
        """Delete the folder with all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _made(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have taken it for a leftover before it was locked.
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
