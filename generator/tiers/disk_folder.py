"""The folder of a disk tier: one subfolder a fingerprint, with one file a node.

    <folder>/<fingerprint>/<first two digits of the key>/<key>.safetensors

A file is temporary until it is whole. Its writer holds a lock on it, which the kernel releases with the process; so
leftovers of dead processes can be told from files that are being written. Only leftovers are ever deleted, and
nothing else in the folder.

Several machines may mount the folder, and a lock may be seen on the machine only where it is held. So the name of a
temporary file tells the machine:

    <key>.<boot id of the machine>.<random>.tmp

Other machines leave it alone for a day. This machine's earlier boots count as other machines.
"""

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from protocol.atomic_files import fsync

_SUFFIX = ".safetensors"
_TEMPORARY = ".tmp"
_ABANDONED_S = 24 * 3600.0
"""A temporary file of another machine that was not written to for so long has no writer any more."""


class FingerprintFolder:
    """The files of one fingerprint, as ``machine`` sees them. Any process of any machine may add and remove files."""

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine

    def prepare(self) -> None:
        """Create the folder. Raises OSError if it cannot be created or written to."""
        self._path.mkdir(parents=True, exist_ok=True)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._path))

    def file(self, key: str) -> Path:
        """The path of a node's file."""
        return self._path / key[:2] / f"{key}{_SUFFIX}"

    def has(self, key: str) -> bool:
        """Whether the node has a file. If the folder cannot be read now, it is taken to have one."""
        try:
            return stat.S_ISREG(self.file(key).stat().st_mode)
        except OSError as error:
            return not _is_absent(error)

    def keys(self) -> Iterator[str]:
        """The keys of all files. Raises OSError if the folder cannot be read now."""
        return (path.stem for path in self._files(_SUFFIX, _listed))

    def create(self, key: str) -> tuple[int, Path]:
        """A new temporary file for a node, open and locked, which ``publish`` renames. Raises OSError."""
        folder = self.file(key).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f"{key}.{self._machine}.", suffix=_TEMPORARY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            Path(name).unlink(missing_ok=True)
            raise
        return descriptor, Path(name)

    def publish(self, temporary: Path, key: str) -> None:
        """Rename a temporary file to the node's, atomically and durably.

        Raises OSError, after deleting the file. A file that can neither be synced nor be deleted counts as published.
        """
        target = self.file(key)
        temporary.rename(target)
        try:
            fsync(target.parent)
        except OSError:
            # Everybody finds the file, but nobody would ever delete one whose writer reports a failure.
            if _delete(target):
                raise

    def sweep(self) -> None:
        """Delete the temporary files of this machine's dead processes, and those of other machines after a day."""
        for path in self._files(_TEMPORARY):
            with suppress(OSError):
                if _machine_of(path) != self._machine and time.time() - path.stat().st_mtime < _ABANDONED_S:
                    continue
                descriptor = os.open(path, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)

    def remove(self) -> None:
        """Delete all files of the fingerprint that can be deleted, and the folders that are empty then."""
        self.sweep()
        for path in self._files(_SUFFIX):
            with suppress(OSError):
                path.unlink()
        for folder in [*_children(self._path), self._path]:
            with suppress(OSError):
                folder.rmdir()

    def usage(self) -> "Usage":
        """Size and age of its files."""
        newest, size = 0.0, 0
        for path in self._files(_SUFFIX):
            with suppress(OSError):
                status = path.stat()
                newest, size = max(newest, status.st_mtime), size + status.st_size
        return Usage(newest, size, self)

    def _files(self, suffix: str, listed: Callable[[Path], list[Path]] | None = None) -> Iterator[Path]:
        """The files of nodes; by default, as far as the folders can be read."""
        listed = listed or _children
        for folder in listed(self._path):
            for path in listed(folder):
                if len(folder.name) == 2 and path.name.startswith(folder.name) and path.suffix == suffix:
                    yield path


class Usage(NamedTuple):
    """Size and age of a folder. ``newest`` is the time of its last write, in seconds since 1970."""

    newest: float
    bytes: int
    folder: FingerprintFolder


def boot_id() -> str:
    """The id of the running kernel, a UUID. Each boot of each machine has another one.

    Containers on one machine share its kernel, and so the id.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def folders_beside(folder: Path, fingerprint: str, machine: str) -> list[Usage]:
    """The folders of other fingerprints that have any files, the most recently written first."""
    others = [FingerprintFolder(path, machine).usage() for path in _children(folder) if path.name != fingerprint]
    return sorted((usage for usage in others if usage.bytes), key=lambda usage: usage.newest, reverse=True)


def _machine_of(temporary: Path) -> str:
    """The machine whose process has created a temporary file; something else for files of earlier releases."""
    _, _, rest = temporary.name.partition(".")
    return rest.partition(".")[0]


def _delete(file: Path) -> bool:
    """Delete a file. Returns False if that fails."""
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _is_absent(error: OSError) -> bool:
    """Whether an error says that there is no such file. Others, such as those of a network, say nothing about it."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


def _listed(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it is none. Raises OSError."""
    try:
        return list(folder.iterdir())
    except OSError as error:
        if _is_absent(error):
            return []
        raise


def _children(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        return _listed(folder)
    except OSError:
        return []
