"""The file of the arena: its layout, its creation and sharing, and the locks on its bytes.

    [geometry, 4 KiB] [page headers, 4 KiB each] [pages, each aligned to 4 KiB]

The file lies in memory (/dev/shm), and every process maps it. Its memory is reserved when the file is created, so that
too little memory is an error at the start and not a SIGBUS later. It is mapped with all its pages present.
"""

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from generator.tiers.base import Page
from protocol.errors import ConfigError

_BLOCK = 4096
_MAGIC = b"RAGTREE1"

PAGE_HEADER = np.dtype(
    [
        ("state", "<u8"),
        ("stamp", "<u8"),
        ("index", "<u4"),
        ("count", "<u4"),
        ("node_bytes", "<u8"),
        ("node", "u1", (_BLOCK - 32,)),
    ]
)
"""A page's state and stamp, its ``index`` among the ``count`` pages of its node and, on the first, the node as JSON."""


class Geometry(msgspec.Struct, frozen=True):
    """What an arena is created for. Processes share an arena only if all of it is equal."""

    fingerprint: str
    page_tokens: int
    page_bytes: int
    page_count: int

    @property
    def stride(self) -> int:
        """Bytes from one page to the next."""
        return -(-self.page_bytes // _BLOCK) * _BLOCK

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return _BLOCK + self.page_count * (_BLOCK + self.stride)

    def encode(self) -> bytes:
        """The file's first bytes."""
        return (_MAGIC + msgspec.json.encode(self)).ljust(_BLOCK, b"\0")


class ByteLocks:
    """Locks on single bytes of an open file. Across all processes, one ``ByteLocks`` holds a byte at a time.

    The kernel releases them when the process ends, however it ends.
    """

    def __init__(self, descriptor: int) -> None:
        # A descriptor of its own, because these locks belong to the open file description, not to the process.
        self._descriptor = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def waiting(self, byte: int) -> Iterator[None]:
        """Hold one byte for the block. Waits until it is free."""
        self._call(fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, byte)
        try:
            yield
        finally:
            self.release(byte)

    def take(self, byte: int) -> bool:
        """Hold one byte from now on. Returns False if it is held elsewhere."""
        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, byte: int) -> None:
        """Release one byte."""
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def close(self) -> None:
        """Release all bytes."""
        os.close(self._descriptor)

    def _call(self, command: int, kind: int, byte: int) -> None:
        # struct flock of 64-bit Linux: type, whence, start, length, and a process id that must be 0.
        fcntl.fcntl(self._descriptor, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))


class ArenaFile:
    """The mapped file at ``path``, attached until ``close``.

    The file is created if it does not exist, and replaced if it has another geometry; processes that have the old file
    mapped keep it. Raises ConfigError if the file cannot be created or mapped.
    """

    def __init__(self, path: Path, geometry: Geometry) -> None:
        self._path = path
        self._geometry = geometry
        # Held while the file is created, attached or removed. The lock's own file stays: others may wait on it.
        self._door = FileLock(f"{path}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._door:
                self._descriptor = self._attach()
            memory = mmap.mmap(self._descriptor, geometry.file_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except OSError as error:
            raise ConfigError(
                f"cannot reserve {geometry.file_bytes} bytes of host memory in {path.parent}: {error.strerror}. "
                "Lower generator.host_gib, or enlarge that file system (in a container, with docker run --shm-size)",
                param="generator.host_gib",
            ) from error
        count, headers_end = geometry.page_count, _BLOCK * (1 + geometry.page_count)
        self.headers: NDArray[np.void] = np.ndarray(count, PAGE_HEADER, memory, _BLOCK)
        self.pages: Page = np.ndarray((count, geometry.page_bytes), np.uint8, memory, headers_end, (geometry.stride, 1))

    @contextmanager
    def locks(self) -> Iterator[ByteLocks]:
        """Locks on the file's bytes, released at the end of the block."""
        locks = ByteLocks(self._descriptor)
        try:
            yield locks
        finally:
            locks.close()

    def close(self) -> None:
        """Detach. The memory is unmapped when the last view of a page is gone. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            del self.headers, self.pages

    def remove(self) -> None:
        """Detach, and delete the file if no other process is attached."""
        with self._door:
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                    self._path.unlink()
            self.close()

    def _attach(self) -> int:
        """Open the file with the right geometry, under a shared lock that marks it as in use."""
        descriptor = self._open()
        try:
            if not self._fits(descriptor):
                self._path.unlink()
                os.close(descriptor)
                descriptor = self._open()
                self._make(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(descriptor).st_uid != os.geteuid():
            # Another user could create the file first, to read tenants' KV or to forge it.
            os.close(descriptor)
            raise PermissionError(errno.EACCES, "the file belongs to another user", str(self._path))
        return descriptor

    def _fits(self, descriptor: int) -> bool:
        encoded = self._geometry.encode()
        return (
            os.fstat(descriptor).st_size == self._geometry.file_bytes
            and os.pread(descriptor, len(encoded), 0) == encoded
        )

    def _make(self, descriptor: int) -> None:
        """Reserve the memory, then write the geometry: a half-created file fits no geometry."""
        try:
            os.posix_fallocate(descriptor, 0, self._geometry.file_bytes)
            os.pwrite(descriptor, self._geometry.encode(), 0)
        except OSError:
            self._path.unlink()
            raise
