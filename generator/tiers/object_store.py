"""The disk tier in an object store: one object a node, in the format of the disk tier's files."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

import structlog

from generator.tiers.base import (
    Damage,
    KvBroken,
    KvMissing,
    KvTier,
    PageReader,
    PageWriter,
    StoredNode,
    TierFull,
    TierUnavailable,
    discarding_writer,
)
from generator.tiers.disk_identity import store_identity
from generator.tiers.node_format import LENGTH_BYTES, NodeFormat, NodeHeader
from generator.tiers.node_object import ObjectReader, ObjectWriter
from generator.tiers.object_requests import Fetched, ObjectRequests
from protocol.kv import KvNode, Pages, Paging
from protocol.tiers import Tier

log = structlog.get_logger(__name__)

_SUFFIX = ".safetensors"
_HEADERS_AT_ONCE = 32
# Most headers are no longer, so that one request fetches one.
_HEADER_BYTES = 16 << 10


class _Entry(NamedTuple):
    """An object. ``node`` is None until its header has been read."""

    bytes: int
    node: KvNode | None


class ObjectStoreTier(KvTier):
    """A tier of objects ``<fingerprint>/<first two digits of the key>/<key>.safetensors``, bounded in bytes.

    All machines may share the store. Each has an index of the objects that it knows: those that it has listed, read or
    written. ``has`` asks the store, because others may have written or deleted the object since. Only if the store does
    not answer, the index does.

    No object is written that would make all known ones of this fingerprint exceed ``max_bytes``. Those of others are
    left alone: another machine may use them. ``broken`` counts the copies that were found damaged, and deleted.

    A store that does not answer is no error of a copy: reading raises TierUnavailable, writing TierFull, and the index
    stays. The store is asked again what it has before the next write, and whenever ``nodes`` is called.
    """

    tier = Tier.DISK
    on_network = True

    def __init__(
        self, requests: ObjectRequests, fingerprint: str, paging: Paging, page_bytes: int, max_bytes: int
    ) -> None:
        self.broken: Counter[Damage] = Counter()
        self._requests = requests
        self._fingerprint = fingerprint
        self._format = NodeFormat(fingerprint, paging, page_bytes)
        self._max_bytes = max_bytes
        self._index: dict[str, _Entry] = {}
        self._reserved = 0
        # Versions of objects that are being deleted because they are broken.
        self._discarded: set[tuple[str, str | None]] = set()
        # Unwanted objects that the store has not deleted.
        self._undeleted: set[str] = set()
        # Guards the fields above and the next ones. Never held during a request.
        self._lock = threading.Lock()
        self._listed = False
        self._listing = threading.Lock()
        # Keys that entered or left the index during the present listing, which may be older than that.
        self._touched: set[str] | None = None
        with suppress(TierUnavailable):
            self._list()

    @cached_property
    def identity(self) -> str:
        """A UUID that names the store wherever it is used. Empty if it is unknown."""
        return store_identity(self._requests)

    def has(self, key: str, pages: Pages | None) -> bool:  # noqa: ARG002
        """Whether the store has the node or, if it does not answer, whether the index has."""
        try:
            return self._exists(key)
        except TierUnavailable:
            with self._lock:
                return key in self._index

    @contextmanager
    def reading(self, key: str, pages: Pages | None) -> Iterator[PageReader]:  # noqa: ARG002
        """Read one version of the object. If it is deleted or replaced meanwhile, the next request finds it broken."""
        header, found = self._open(key)
        reader = ObjectReader(self._requests, self._path(key), found.e_tag, header, self._format.page_bytes)
        try:
            yield reader
        finally:
            # The exception does not tell: the block may read another tier too, whose copy is the broken one.
            if reader.damage is not None:
                self._discard(key, found.e_tag, reader.damage)

    @contextmanager
    def writing(self, node: KvNode, pages: Pages | None) -> Iterator[PageWriter]:  # noqa: ARG002
        """Collect the node in memory, and upload it when it is whole."""
        if self._is_written(node.key):
            with discarding_writer(self._format.pages(node), self._format.page_bytes) as discarding:
                yield discarding
            return
        size = self._format.file_bytes(node)
        with self._room(size):
            writer = ObjectWriter(self._format, node)
            yield writer
            writer.finish()
            with _refused(node.key):
                self._requests.put(self._path(node.key), writer.content)
            self._enter(node.key, _Entry(size, node))

    def drop(self, key: str, pages: Pages | None) -> None:  # noqa: ARG002
        """Delete the object. If the store does not do it, the node is still held, and deleted before the next write."""
        try:
            self._delete(key)
        except TierUnavailable:
            with self._lock:
                self._undeleted.add(key)

    def nodes(self) -> list[StoredNode]:
        """All nodes in the store, from all writers, in the order of their keys. Raises TierUnavailable."""
        self._list()
        with self._lock:
            unknown = [key for key, entry in self._index.items() if entry.node is None]
        with ThreadPoolExecutor(_HEADERS_AT_ONCE, "kv-headers") as threads:
            # Consumed to the end, so that what is raised is not lost.
            for _ in threads.map(self._learn, unknown):
                pass
        with self._lock:
            known = [entry.node for _, entry in sorted(self._index.items()) if entry.node is not None]
        return [StoredNode(node) for node in known]

    def close(self) -> None:
        """Do nothing: the store's connections end with it."""

    def _path(self, key: str) -> str:
        return f"{self._fingerprint}/{key[:2]}/{key}{_SUFFIX}"

    def _keys(self) -> Iterable[tuple[str, int]]:
        """The keys and sizes of all objects of nodes."""
        for path, size in self._requests.list(self._fingerprint):
            key = path.rpartition("/")[2].removesuffix(_SUFFIX)
            if path == self._path(key):
                yield key, size

    def _list(self) -> None:
        """Make the index that of the objects in the store. Raises TierUnavailable; then the index stays."""
        with self._listing:
            touched: set[str] = set()
            self._touched = touched
            try:
                there = dict(self._keys())
                with self._lock:
                    for key in self._index.keys() - there.keys() - touched:
                        del self._index[key]
                    for key in there.keys() - self._index.keys() - touched:
                        self._index[key] = _Entry(there[key], None)
                    self._listed = True
            finally:
                self._touched = None

    def _learn(self, key: str) -> None:
        """Read an object's header into the index, if it is there and intact. Raises TierUnavailable."""
        with suppress(KvMissing, KvBroken):
            self._open(key)

    def _open(self, key: str) -> tuple[NodeHeader, Fetched]:
        """The object's header, which the index knows from now on. If it is damaged, deletes the object."""
        try:
            found = self._start(key)
        except KvMissing:
            self._forget(key)
            raise
        try:
            header = self._header(key, found)
        except KvBroken as broken:
            self._discard(key, found.e_tag, broken.damage)
            raise
        self._enter(key, _Entry(found.size, header.node))
        return header, found

    def _start(self, key: str) -> Fetched:
        """The beginning of an object."""
        try:
            return self._requests.get(self._path(key), 0, _HEADER_BYTES)
        except KvBroken:
            # An empty object has no range of bytes.
            return self._requests.head(self._path(key))

    def _header(self, key: str, start: Fetched) -> NodeHeader:
        """The header of an object, of which ``start`` is the beginning."""
        length = self._format.header_bytes(bytes(start.data[:LENGTH_BYTES]), start.size)
        if length > len(start.data):
            start = self._requests.get(self._path(key), 0, length, start.e_tag)
        header = self._format.decode(bytes(start.data[:length]), start.size)
        if header.node.key != key:
            raise KvBroken(Damage.FOREIGN, f"the object of {key} holds the node {header.node.key}")
        return header

    def _discard(self, key: str, e_tag: str | None, damage: Damage) -> None:
        """Count and delete a broken object, unless it is already deleted or replaced."""
        path = self._path(key)
        with self._lock:
            if (key, e_tag) in self._discarded:
                return
            self._discarded.add((key, e_tag))
        try:
            if self._requests.head(path).e_tag != e_tag:
                return
            self.broken[damage] += 1
            log.warning("a copy in the object store is broken", key=key, damage=damage.value)
            self._requests.delete(path)
            self._forget(key)
        except KvMissing:
            self._forget(key)
        except TierUnavailable:
            # The next reader finds the same damage.
            pass
        finally:
            with self._lock:
                self._discarded.discard((key, e_tag))

    def _is_written(self, key: str) -> bool:
        """Whether the store has a node that is to be written. Raises TierFull if it does not answer."""
        with _refused(key):
            if not self._listed:
                self._list()
            with self._lock:
                # It is wanted again.
                self._undeleted.discard(key)
                late = list(self._undeleted)
            for other in late:
                self._delete(other)
            return self._exists(key)

    def _delete(self, key: str) -> None:
        """Delete an object, if it exists. Raises TierUnavailable."""
        self._requests.delete(self._path(key))
        self._forget(key)
        with self._lock:
            self._undeleted.discard(key)

    def _exists(self, key: str) -> bool:
        """Ask the store for a node, and correct the index. Raises TierUnavailable."""
        try:
            found = self._requests.head(self._path(key))
        except KvMissing:
            self._forget(key)
            return False
        with self._lock:
            known = self._index.get(key)
        if known is None or known.bytes != found.size:
            self._enter(key, _Entry(found.size, None))
        return True

    def _enter(self, key: str, entry: _Entry) -> None:
        with self._lock:
            self._index[key] = entry
            if self._touched is not None:
                self._touched.add(key)

    def _forget(self, key: str) -> None:
        with self._lock:
            self._index.pop(key, None)
            if self._touched is not None:
                self._touched.add(key)

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve ``size`` bytes until the object is published. Raises TierFull."""
        with self._lock:
            fits = self._used() + self._reserved + size <= self._max_bytes
        if not fits:
            # Others may have deleted some.
            with suppress(TierUnavailable):
                self._list()
        with self._lock:
            used = self._used() + self._reserved
            if used + size > self._max_bytes:
                raise TierFull(f"{size} bytes do not fit: {used} of {self._max_bytes} are used")
            self._reserved += size
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= size

    def _used(self) -> int:
        return sum(entry.bytes for entry in self._index.values())


@contextmanager
def _refused(key: str) -> Iterator[None]:
    try:
        yield
    except TierUnavailable as error:
        raise TierFull(f"{key} cannot be written: {error}") from error
