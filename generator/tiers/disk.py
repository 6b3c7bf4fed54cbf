"""The disk tier: one checksummed file a node, bounded in bytes."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import structlog

from generator.tiers.base import (
    Damage,
    KvBroken,
    KvMissing,
    KvTier,
    PageReader,
    PageWriter,
    SpareBuffers,
    StoredNode,
    TierFull,
    TierUnavailable,
    discarding_writer,
)
from generator.tiers.disk_folder import FingerprintFolder, boot_id, folders_beside
from generator.tiers.disk_identity import folder_identity
from generator.tiers.node_file import NodeFileReader, NodeFileWriter, evict, read_header
from generator.tiers.node_format import NodeFormat, NodeHeader
from protocol.kv import KvNode, Pages, Paging
from protocol.tiers import Tier

log = structlog.get_logger(__name__)


class _Entry(NamedTuple):
    node: KvNode
    bytes: int


class DiskTier(KvTier):
    """A tier of files under ``folder``. Processes may share it: each finds what the others publish.

    So may machines that mount the folder, which tell each other's unfinished files by ``machine``: this one's boot id.

    No file is written that would make all known files exceed ``max_bytes``, headers and other fingerprints included.
    Files that other processes write are known from the next call of ``nodes`` on. If room is short, folders of other
    fingerprints are deleted, oldest first. ``broken`` counts the copies that were found damaged, and deleted.

    Without ``file_cache``, a file leaves the operating system's file cache once it has been written or read: then the
    tier takes no memory, and every read comes from the disk.

    If the folder is read-only, a warning is logged at the start; its files are read, and writing is refused.
    """

    tier = Tier.DISK

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        paging: Paging,
        page_bytes: int,
        max_bytes: int,
        file_cache: bool = True,
        machine: str | None = None,
    ) -> None:
        self.broken: Counter[Damage] = Counter()
        self._format = NodeFormat(fingerprint, paging, page_bytes)
        machine = machine or boot_id()
        self._root = folder
        self._folder = FingerprintFolder(folder / fingerprint, machine)
        self._max_bytes = max_bytes
        self._file_cache = file_cache
        self._index: dict[str, _Entry] = {}
        self._reserved = 0
        # Guards the index, the reservations, and publishing and deleting files. Never held while KV is copied.
        self._lock = threading.Lock()
        self._buffers = SpareBuffers(page_bytes)
        try:
            self._folder.prepare()
        except OSError as error:
            log.warning("the disk tier is read-only", folder=str(folder), error=error.strerror)
        self._folder.sweep()
        try:
            self._refresh()
        except TierUnavailable as error:
            log.warning("the disk tier cannot be read", folder=str(folder), error=str(error))
        self._others = folders_beside(folder, fingerprint, machine)
        if self._others:
            held = sum(other.bytes for other in self._others)
            log.info("kv_of_other_fingerprints", folder=str(folder), bytes=held, note="not used; deleted for room")
        self._reclaim(0)

    @cached_property
    def identity(self) -> str:
        """A UUID that names the folder wherever it is mounted. Empty if it is unknown."""
        return folder_identity(self._root)

    def has(self, key: str, pages: Pages | None) -> bool:  # noqa: ARG002
        """Whether the node's file exists, whichever process wrote it."""
        return self._folder.has(key)

    @contextmanager
    def reading(self, key: str, pages: Pages | None) -> Iterator[PageReader]:  # noqa: ARG002
        """Read the file's pages. They stay good even if the file is deleted or replaced meanwhile."""
        with self._opened(key) as descriptor, self._buffers.taken() as buffer:
            reader = NodeFileReader(descriptor, self._header(key, descriptor), buffer)
            try:
                yield reader
            finally:
                # The exception does not tell: the block may read another tier too, whose copy is the broken one.
                if reader.damage is not None:
                    self._discard(key, descriptor, reader.damage)
                if not self._file_cache:
                    reader.uncache()

    @contextmanager
    def writing(self, node: KvNode, pages: Pages | None) -> Iterator[PageWriter]:
        """Write a temporary file, which is renamed when it is whole."""
        if self.has(node.key, pages):
            with discarding_writer(self._format.pages(node), self._format.page_bytes) as discarding:
                yield discarding
            return
        size = self._format.file_bytes(node)
        with self._room(size), self._temporary(node.key) as (descriptor, temporary):
            with self._buffers.taken() as buffer:
                writer = NodeFileWriter(descriptor, self._format, node, buffer)
                yield writer
                writer.finish()
            if not self._file_cache:
                evict(descriptor)
            with self._lock:
                try:
                    self._folder.publish(temporary, node.key)
                except OSError as error:
                    # Another writer of the same node may have published it before, and its file is gone too.
                    self._forget_if_gone(node.key)
                    raise TierFull(f"{node.key} cannot be published: {error.strerror}") from error
                self._index[node.key] = _Entry(node, size)

    def drop(self, key: str, pages: Pages | None) -> None:  # noqa: ARG002
        """Delete the file. If that fails, a warning is logged and the node is still held."""
        with self._lock:
            try:
                self._folder.file(key).unlink()
            except (FileNotFoundError, NotADirectoryError):
                pass  # already deleted
            except OSError as error:
                log.warning("a file of the disk tier cannot be deleted", key=key, error=error.strerror)
                return
            self._index.pop(key, None)

    def nodes(self) -> list[StoredNode]:
        """All nodes on disk, whichever process wrote them, in the order of their keys.

        Raises TierUnavailable if the folder cannot be read now.
        """
        self._refresh()
        with self._lock:
            return [StoredNode(self._index[key].node) for key in sorted(self._index)]

    def close(self) -> None:
        """Free the page buffers."""
        self._buffers.clear()

    def _refresh(self) -> None:
        """Add to the index what other processes published, and remove from it what they deleted.

        Raises TierUnavailable if the folder cannot be read now.
        """
        try:
            there = set(self._folder.keys())
        except OSError as error:
            raise TierUnavailable(f"the folder of KV cannot be read: {error.strerror}") from error
        for key in there - self._index.keys():
            with suppress(KvMissing, KvBroken), self._opened(key) as descriptor:
                node = self._header(key, descriptor).node
                size = os.fstat(descriptor).st_size
                with self._lock:
                    if self._folder.has(key):
                        self._index[key] = _Entry(node, size)
        with self._lock:
            self._forget_deleted(there)

    def _forget_deleted(self, there: set[str]) -> None:
        """Take all but the keys ``there`` out of the index: others deleted them. Call it with the lock held."""
        for key in self._index.keys() - there:
            self._forget_if_gone(key)

    def _forget_if_gone(self, key: str) -> None:
        """Take a node without a file out of the index. Call it with the lock held."""
        if not self._folder.has(key):
            self._index.pop(key, None)

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """The node's file, open within the block. Raises KvMissing."""
        try:
            descriptor = os.open(self._folder.file(key), os.O_RDONLY)
        except OSError as error:
            with self._lock:
                self._forget_if_gone(key)
            raise KvMissing(f"{key} cannot be opened: {error.strerror}") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _header(self, key: str, descriptor: int) -> NodeHeader:
        """The file's header. If it is damaged, deletes the file and raises KvBroken."""
        try:
            header = read_header(descriptor, self._format)
            if header.node.key != key:
                raise KvBroken(Damage.FOREIGN, f"the file of {key} holds the node {header.node.key}")
        except OSError as error:
            self._discard(key, descriptor, Damage.UNREADABLE)
            raise KvBroken(Damage.UNREADABLE, f"{key} cannot be read: {error.strerror}") from error
        except KvBroken as broken:
            self._discard(key, descriptor, broken.damage)
            raise
        return header

    def _discard(self, key: str, descriptor: int, damage: Damage) -> None:
        """Count and delete a broken file, unless it is already deleted or replaced.

        If several readers find the same file broken, it is counted once.
        """
        path = self._folder.file(key)
        with self._lock, suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                self.broken[damage] += 1
                log.warning("a copy on disk is broken", key=key, damage=damage.value)
                self._index.pop(key, None)
                path.unlink()

    @contextmanager
    def _temporary(self, key: str) -> Iterator[tuple[int, Path]]:
        """A temporary file, deleted at the end of the block unless it was published. Raises TierFull."""
        try:
            descriptor, temporary = self._folder.create(key)
        except OSError as error:
            raise TierFull(f"{key} cannot be written: {error.strerror}") from error
        try:
            yield descriptor, temporary
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            # The file is synced or deleted by now, so an error means nothing, and must not deny that it is published.
            with suppress(OSError):
                os.close(descriptor)

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes until the file is published. Raises TierFull."""
        with self._lock:
            if not self._reclaim(size):
                raise TierFull(
                    f"{size} bytes do not fit: {self._used() + self._reserved} of {self._max_bytes} are used"
                )
            self._reserved += size
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= size

    def _reclaim(self, size: int) -> bool:
        """Delete folders of other fingerprints, oldest first, until ``size`` bytes fit. Returns whether they do."""
        if self._used() + self._reserved + size > self._max_bytes:
            self._forget_deleted(set(self._folder.keys()))
        wanted = self._used() + self._reserved + size
        while self._others and wanted + sum(other.bytes for other in self._others) > self._max_bytes:
            self._others.pop().folder.remove()
        return wanted <= self._max_bytes

    def _used(self) -> int:
        return sum(entry.bytes for entry in self._index.values())
