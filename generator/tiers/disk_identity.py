"""The identity of a disk: a UUID that names it wherever it is mounted. A file or an object ``disk-id`` holds it."""

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import structlog

from generator.tiers.base import KvMissing, TierError
from generator.tiers.object_requests import ObjectRequests

log = structlog.get_logger(__name__)

_NAME = "disk-id"
# Longer than any identity: what is longer is none.
_MOST_BYTES = 64


def folder_identity(folder: Path) -> str:
    """The identity of a folder, which gets one if it has none. Processes that start at once agree on it.

    It is empty, which means that it is unknown, if the folder has none and cannot be written to, or if the file has no
    UUID.
    """
    file = folder / _NAME
    try:
        if not file.exists():
            _create(file)
        return _checked(file.read_bytes(), str(folder))
    except OSError as error:
        log.warning("the disk has no identity", disk=str(folder), error=error.strerror)
        return ""


def store_identity(store: ObjectRequests) -> str:
    """The identity of an object store, as that of a folder. It is also unknown if the store does not answer now."""
    try:
        try:
            found = store.get(_NAME, 0, _MOST_BYTES)
        except KvMissing:
            store.create(_NAME, _new())
            found = store.get(_NAME, 0, _MOST_BYTES)
    except TierError as error:
        log.warning("the disk has no identity", disk=store.name, error=str(error))
        return ""
    return _checked(bytes(found.data), store.name)


def _create(file: Path) -> None:
    """Write a new identity, unless another process does. Nobody ever finds a part of it."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{_NAME}.") as temporary:
        temporary.write(_new())
        temporary.flush()
        os.fsync(temporary.fileno())
        # Unlike a rename, a link does not replace the file of a process that was faster.
        with suppress(FileExistsError):
            _link(temporary.name, file)


def _link(name: str, file: Path) -> None:
    """Publish a file under another name. Raises FileExistsError if the name is taken."""
    try:
        os.link(name, file)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # File systems without links. Another process may find an empty file, and has no identity until its next start.
        with file.open("xb") as published:
            published.write(Path(name).read_bytes())


def _new() -> bytes:
    return f"{uuid4()}\n".encode()


def _checked(content: bytes, disk: str) -> str:
    try:
        return str(UUID(content.decode().strip()))
    except ValueError:
        log.warning("the disk has no identity", disk=disk, error=f"{_NAME} holds no UUID")
        return ""
