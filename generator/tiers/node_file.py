"""One node's KV in a safetensors file: a tensor of bytes with one row a page, and a checksum a row in the header.

The header's length depends on the node alone. So the pages are written first, behind the header's place, and the header
is written last.
"""

import os
from collections.abc import Sequence

import msgspec
import numpy as np
from xxhash import xxh3_64, xxh3_64_hexdigest, xxh3_64_intdigest

from generator.tiers.base import Damage, KvBroken, Page, PageTarget, TierFull
from generator.tiers.file_cache import evict
from generator.tiers.writers import OrderedWriter
from protocol.kv import KvNode, pages_spanned

_FORMAT = "ragtree-kv-1"
_LENGTH_BYTES = 8
_ALIGNMENT = 4096
_TENSOR = "kv"
_MOST_PARTS = os.sysconf("SC_IOV_MAX")
"""The most buffers that one system call fills."""


class _Metadata(msgspec.Struct, frozen=True):
    """Metadata as strings, as safetensors requires. ``checksum`` covers all other fields."""

    format: str
    fingerprint: str
    node: str
    page_checksums: str
    checksum: str = ""


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, int]
    data_offsets: tuple[int, int]


class _Header(msgspec.Struct, frozen=True):
    metadata: _Metadata = msgspec.field(name="__metadata__")
    kv: _Tensor = msgspec.field(name=_TENSOR)


class NodeHeader(msgspec.Struct, frozen=True):
    """The decoded header of a file: its node, the pages' checksums, and the offset of the first page in bytes."""

    node: KvNode
    checksums: tuple[int, ...]
    data_at: int


class NodeFormat:
    """The file format of one ``fingerprint``, whose pages have ``page_tokens`` tokens and ``page_bytes`` bytes."""

    def __init__(self, fingerprint: str, page_tokens: int, page_bytes: int) -> None:
        self._fingerprint = fingerprint
        self._page_tokens = page_tokens
        self.page_bytes = page_bytes

    def pages(self, node: KvNode) -> int:
        """The number of a node's pages."""
        return len(pages_spanned(node.prefix_tokens, node.tokens, self._page_tokens))

    def file_bytes(self, node: KvNode) -> int:
        """The length of a node's file."""
        pages = self.pages(node)
        return len(self.encode(node, [0] * pages)) + pages * self.page_bytes

    def encode(self, node: KvNode, checksums: Sequence[int]) -> bytes:
        """The header, padded with spaces, as the format allows, so that the pages begin aligned."""
        rows = len(checksums)
        metadata = _Metadata(
            _FORMAT,
            self._fingerprint,
            msgspec.json.encode(node).decode(),
            "".join(f"{checksum:016x}" for checksum in checksums),
        )
        sealed = msgspec.structs.replace(metadata, checksum=xxh3_64_hexdigest(msgspec.json.encode(metadata)))
        tensor = _Tensor("U8", (rows, self.page_bytes), (0, rows * self.page_bytes))
        body = msgspec.json.encode(_Header(sealed, tensor))
        length = -(-(_LENGTH_BYTES + len(body)) // _ALIGNMENT) * _ALIGNMENT - _LENGTH_BYTES
        return length.to_bytes(_LENGTH_BYTES, "little") + body.ljust(length)

    def decode(self, descriptor: int) -> NodeHeader:
        """The header of an open file whose length is right. Raises KvBroken if not, or OSError."""
        size = os.fstat(descriptor).st_size
        prefix = os.pread(descriptor, _LENGTH_BYTES, 0)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            raise KvBroken(Damage.SIZE, "the file is shorter than its header")
        raw = os.pread(descriptor, length, _LENGTH_BYTES)
        try:
            metadata = msgspec.json.decode(raw, type=_Header).metadata
            node = msgspec.json.decode(metadata.node, type=KvNode)
            digits = metadata.page_checksums
            checksums = tuple(int(digits[at : at + 16], 16) for at in range(0, len(digits), 16))
        except (msgspec.DecodeError, ValueError) as error:
            raise KvBroken(Damage.HEADER, f"the header does not parse: {error}") from error
        if (metadata.format, metadata.fingerprint) != (_FORMAT, self._fingerprint):
            raise KvBroken(
                Damage.FOREIGN, f"the file has fingerprint {metadata.fingerprint!r} and format {metadata.format!r}"
            )
        # Encoding what was decoded gives the same bytes only if every byte of the header is intact.
        if len(checksums) != self.pages(node) or prefix + raw != self.encode(node, checksums):
            raise KvBroken(Damage.HEADER, "the header does not match its checksum")
        data_at = len(prefix) + len(raw)
        if size != data_at + len(checksums) * self.page_bytes:
            raise KvBroken(Damage.SIZE, f"the file has {size} bytes, which does not match its header")
        return NodeHeader(node, checksums, data_at)


class NodeFileReader:
    """A ``PageReader`` of an open file. It reads every page into the same ``buffer``.

    The file is not mapped, because truncating a mapped file would kill the process. ``damage`` is the damage found so
    far, if any.
    """

    def __init__(self, descriptor: int, header: NodeHeader, buffer: Page) -> None:
        self._descriptor = descriptor
        self.node = header.node
        self._header = header
        self._buffer = buffer
        self.damage: Damage | None = None

    def page(self, index: int) -> Page:
        """Page ``index``, with its checksum verified. Raises KvBroken or IndexError."""
        self._read(index, [self._buffer])
        return self._buffer

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load page by page, directly into the blocks if the CPU can access them. Raises KvBroken or IndexError."""
        for index, block in enumerate(blocks, start=first):
            parts = target.in_place(block)
            if parts:
                self._read(index, parts)
            else:
                target.write(self.page(index)[np.newaxis], [0], [block])

    def uncache(self) -> None:
        """Take the file out of the file cache."""
        evict(self._descriptor)

    def verify(self) -> None:
        """Do nothing: each page was verified when it was read, and a file never changes."""

    def _read(self, index: int, parts: Sequence[Page]) -> None:
        if not 0 <= index < len(self._header.checksums):
            raise IndexError(f"page {index} of {len(self._header.checksums)}")
        self.damage = self._fill(parts, index)
        if self.damage is not None:
            raise KvBroken(self.damage, f"page {index} of {self._header.node.key} is damaged: {self.damage.value}")

    def _fill(self, parts: Sequence[Page], index: int) -> Damage | None:
        at = self._header.data_at + index * self._buffer.size
        rooms = [part.data for part in parts]
        try:
            while rooms:
                got = os.preadv(self._descriptor, rooms[:_MOST_PARTS], at)
                if not got:
                    return Damage.SIZE
                at += got
                while rooms and got >= len(rooms[0]):
                    got -= len(rooms.pop(0))
                if got:
                    rooms[0] = rooms[0][got:]
        except OSError:
            return Damage.UNREADABLE
        digest = xxh3_64()
        for part in parts:
            digest.update(part.data)
        return None if digest.intdigest() == self._header.checksums[index] else Damage.CHECKSUM


class NodeFileWriter(OrderedWriter):
    """A writer into an open file through one ``buffer``: each page is written when the next one is requested.

    Raises TierFull if the disk refuses a write. The file is whole once ``finish`` has returned.
    """

    def __init__(self, descriptor: int, layout: NodeFormat, node: KvNode, buffer: Page) -> None:
        super().__init__(layout.pages(node))
        self._descriptor = descriptor
        self._layout = layout
        self._node = node
        self._page = buffer
        self._checksums: list[int] = []
        self._at = layout.file_bytes(node) - self._count * layout.page_bytes

    def finish(self) -> None:
        """Write the last page and the header, and sync the file to disk. Raises ValueError or TierFull."""
        super().finish()
        if self._count:
            self._flush()
        self._write(self._layout.encode(self._node, self._checksums), 0)
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._refusal(error) from error

    def _buffer(self, index: int) -> Page:
        if index:
            self._flush()
        return self._page

    def _flush(self) -> None:
        self._checksums.append(xxh3_64_intdigest(self._page.data))
        self._write(self._page.data, self._at)
        self._at += self._page.size

    def _write(self, data: bytes | memoryview, at: int) -> None:
        room = memoryview(data)
        try:
            while room:
                written = os.pwrite(self._descriptor, room, at)
                room, at = room[written:], at + written
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> TierFull:
        return TierFull(f"{self._node.key} cannot be written: {error.strerror}")
