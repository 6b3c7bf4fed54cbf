"""The file of the arena: its layout, its creation and sharing, and the locks on its bytes.

    [geometry, 4 KiB] [page headers, 4 KiB each] [pages, each aligned to 4 KiB]

The file lies in memory (/dev/shm), and every process maps it. Its memory is reserved when the file is created, so that
too little memory is an error at the start and not a SIGBUS later. It is mapped with all its pages present.

A node's record is MessagePack, with hexadecimal texts as their bytes. A content hash takes 35 bytes. The longest path
of a query of the stack, with 101 segments, takes 3.5 KB.
"""

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from generator.tiers.base import Page
from protocol.errors import ConfigError
from protocol.kv import KvNode

_HEXADECIMAL = b"x"
_PLAIN = b"t"
"""A text's first byte says which of the two it is."""
_BLOCK = 4096
_MAGIC = b"RAGTREE2"
_DOOR = 1 << 40
"""The byte, after the end of any file, that is locked while the file is made or attached."""

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
"""A page's state and stamp, and its ``index`` among the ``count`` pages of its node.

``node`` is the page's part of the node's record, which fills the headers of the node's pages from the first on. The
first page has the record's length, ``node_bytes``.
"""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a ``KvNode``, with packed texts."""

    key: bytes
    namespace: bytes
    path: tuple[bytes, ...]
    prefix_tokens: int
    tokens: int


def encode_node(node: KvNode) -> bytes:
    """The record of a node."""
    path = tuple(_pack(content) for content in node.path)
    return msgspec.msgpack.encode(
        _Record(_pack(node.key), _pack(node.namespace), path, node.prefix_tokens, node.tokens)
    )


def decode_node(record: bytes) -> KvNode | None:
    """The node of a record, or None if the bytes are not one."""
    try:
        fields = msgspec.msgpack.decode(record, type=_Record)
        path = tuple(_unpack(content) for content in fields.path)
        return KvNode(_unpack(fields.key), _unpack(fields.namespace), path, fields.prefix_tokens, fields.tokens)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _pack(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    # Only lower-case digits without spaces come back as they were.
    return _HEXADECIMAL + raw if raw.hex() == text else _PLAIN + text.encode("utf-8", "surrogatepass")


def _unpack(packed: bytes) -> str:
    body = packed[1:]
    return body.hex() if packed.startswith(_HEXADECIMAL) else body.decode("utf-8", "surrogatepass")


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
    """Locks on bytes of an open file. Across all processes, one ``ByteLocks`` holds a byte, or several share it.

    The kernel releases them when the process ends, however it ends.
    """

    def __init__(self, descriptor: int) -> None:
        # A separate descriptor, because these locks belong to the open file description, not to the process.
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

    def share(self, first: int, count: int) -> bool:
        """Keep ``count`` bytes from being held, from now on. Returns False if one of them is held elsewhere."""
        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_RDLCK, first, count)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, byte: int) -> None:
        """Release one byte."""
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, byte)

    def release_all(self) -> None:
        """Release all bytes, and stay open."""
        # No bytes stands for all that follow the first one.
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)

    def close(self) -> None:
        """Release all bytes."""
        os.close(self._descriptor)

    def _call(self, command: int, kind: int, first: int, count: int = 1) -> None:
        # struct flock of 64-bit Linux: type, whence, start, length, and a process id that must be 0.
        fcntl.fcntl(self._descriptor, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, first, count, 0))


class ArenaFile:
    """The mapped file at ``path``, attached until ``close``.

    The file is created if it does not exist, and replaced if it has another geometry; processes that have the old file
    mapped keep it. Raises ConfigError if the file cannot be created or mapped, and deletes it if it made it.
    """

    def __init__(self, path: Path, geometry: Geometry) -> None:
        self._path = path
        self._geometry = geometry
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor, memory = self._attach()
        except OSError as error:
            raise self._refusal(error) from error
        count, headers_end = geometry.page_count, _BLOCK * (1 + geometry.page_count)
        self.headers: NDArray[np.void] = np.ndarray(count, PAGE_HEADER, memory, _BLOCK)
        self.pages: Page = np.ndarray((count, geometry.page_bytes), np.uint8, memory, headers_end, (geometry.stride, 1))

    def new_locks(self) -> ByteLocks:
        """Locks on the file's bytes, to be closed."""
        return ByteLocks(self._descriptor)

    def locks(self) -> closing[ByteLocks]:
        """Locks on the file's bytes, released at the end of the block."""
        return closing(self.new_locks())

    def close(self) -> None:
        """Detach. The memory is unmapped when the last view of a page is gone. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            del self.headers, self.pages

    def _attach(self) -> tuple[int, mmap.mmap]:
        """Open and map the file with the right geometry."""
        while True:
            descriptor = self._open()
            try:
                with closing(ByteLocks(descriptor)) as locks, locks.waiting(_DOOR):
                    # While this process waited, another one may have deleted the file.
                    if self._is_current(descriptor) and self._has_geometry(descriptor):
                        return descriptor, self._map(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self) -> int:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "it is a symbolic link") from error
            raise
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
            return descriptor
        os.close(descriptor)
        # Another user could create the file first, to read tenants' KV or to forge it.
        foreign = status.st_uid != os.geteuid()
        raise PermissionError(errno.EACCES, "it belongs to another user" if foreign else "it is not a regular file")

    def _is_current(self, descriptor: int) -> bool:
        """Whether the path still leads to this open file."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.lstat())
        except FileNotFoundError:
            return False

    def _has_geometry(self, descriptor: int) -> bool:
        """Whether the file is new, or has the right geometry. Deletes it if not, a half-made one included."""
        encoded = self._geometry.encode()
        size = os.fstat(descriptor).st_size
        if not size or (size == self._geometry.file_bytes and os.pread(descriptor, len(encoded), 0) == encoded):
            return True
        self._path.unlink()
        return False

    def _map(self, descriptor: int) -> mmap.mmap:
        """Map the file. Reserves its memory first if it is new, and deletes it if that fails."""
        new = not os.fstat(descriptor).st_size
        try:
            if new:
                # The geometry comes last, so that a half-made file has none.
                os.posix_fallocate(descriptor, 0, self._geometry.file_bytes)
                os.pwrite(descriptor, self._geometry.encode(), 0)
            return mmap.mmap(descriptor, self._geometry.file_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            if new:
                self._path.unlink(missing_ok=True)
            raise

    def _refusal(self, error: OSError) -> ConfigError:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            return ConfigError(
                f"cannot reserve {self._geometry.file_bytes} bytes of host memory in {self._path.parent}: "
                f"{error.strerror}. Lower generator.kv.host_gib, or enlarge that file system (in a container, with "
                "docker run --shm-size)",
                param="generator.kv.host_gib",
            )
        return ConfigError(
            f"cannot use {self._path} as host memory: {error.strerror}. Set generator.kv.host_dir to a tmpfs that this "
            "user may write to",
            param="generator.kv.host_dir",
        )
