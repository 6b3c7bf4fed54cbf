"""The folder of a disk tier: one folder a fingerprint, in it files by key, and temporary files until they are whole.

    <folder>/<fingerprint>/<first two digits of the key>/<key>.safetensors

Whoever writes a temporary file holds a lock on it, which the kernel drops with its process, so leftovers are told from
the work of others. Nothing but such files is ever deleted, whatever else lies there.
"""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SUFFIX = ".safetensors"
_TEMPORARY = ".tmp"


class FingerprintFolder:
    """The files of one fingerprint. Any process may add and remove some at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def prepare(self) -> None:
        """Make the folder. Raises OSError where it cannot be made or written to."""
        self._path.mkdir(parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._path))

    def file(self, key: str) -> Path:
        """Where the node of this key lies, if it is there."""
        return self._path / key[:2] / f"{key}{_SUFFIX}"

    def has(self, key: str) -> bool:
        """Whether the key has a file."""
        try:
            return self.file(key).is_file()
        except OSError:
            return False

    def keys(self) -> Iterator[str]:
        """The keys of all files there are."""
        return (path.stem for path in self._files(_SUFFIX))

    def create(self, key: str) -> tuple[int, Path]:
        """A new temporary file, open and locked, that ``publish`` can make the key's. Raises OSError."""
        folder = self.file(key).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f"{key}.", suffix=_TEMPORARY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            Path(name).unlink(missing_ok=True)
            raise
        return descriptor, Path(name)

    def publish(self, temporary: Path, key: str) -> None:
        """Give a temporary file its name, in one step that a power failure does not undo. Raises OSError."""
        target = self.file(key)
        temporary.rename(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sweep(self) -> None:
        """Remove the temporary files that nobody writes any more."""
        for path in self._files(_TEMPORARY):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)

    def remove(self) -> None:
        """Delete all of it, as far as it can be deleted and is not something else's."""
        self.sweep()
        for path in self._files(_SUFFIX):
            with suppress(OSError):
                path.unlink()
        for folder in [*_children(self._path), self._path]:
            with suppress(OSError):
                folder.rmdir()

    def usage(self) -> "Usage":
        """What its files come to."""
        newest, size = 0.0, 0
        for path in self._files(_SUFFIX):
            with suppress(OSError):
                status = path.stat()
                newest, size = max(newest, status.st_mtime), size + status.st_size
        return Usage(newest, size, self)

    def _files(self, suffix: str) -> Iterator[Path]:
        for folder in _children(self._path):
            for path in _children(folder):
                if len(folder.name) == 2 and path.name.startswith(folder.name) and path.suffix == suffix:
                    yield path


class Usage(NamedTuple):
    """Size and age of a folder: ``newest`` is when its last file was written, in seconds since 1970."""

    newest: float
    bytes: int
    folder: FingerprintFolder


def folders_beside(folder: Path, fingerprint: str) -> list[Usage]:
    """The folders of other fingerprints that take any room, the one that was written to last in front."""
    others = [FingerprintFolder(path).usage() for path in _children(folder) if path.name != fingerprint]
    return sorted((usage for usage in others if usage.bytes), key=lambda usage: usage.newest, reverse=True)


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
