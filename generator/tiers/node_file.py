"""One node's KV in a file of the format of ``node_format``.

The pages are written first, after the header's place, and the header is written last.
"""

import os
from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from generator.tiers.base import Damage, KvBroken, OrderedWriter, Page, PageReader, PageTarget, TierFull
from generator.tiers.node_format import LENGTH_BYTES, NodeFormat, NodeHeader
from protocol.kv import KvNode

_MOST_PARTS = os.sysconf("SC_IOV_MAX")
"""The most buffers that one system call fills."""
_READ_BYTES = 1 << 20


def evict(descriptor: int) -> None:
    """Take an open file out of the file cache, as far as it is synced and the file system allows it.

    File systems that keep their files in memory, such as tmpfs, do not.
    """
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def read_header(descriptor: int, layout: NodeFormat) -> NodeHeader:
    """The header of an open file whose length is right. Raises KvBroken if not, or OSError."""
    size = os.fstat(descriptor).st_size
    length = layout.header_bytes(os.pread(descriptor, LENGTH_BYTES, 0), size)
    return layout.decode(os.pread(descriptor, length, 0), size)


class NodeFileReader(PageReader):
    """Reads an open file. It reads every page into the same ``buffer``.

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
        self._read(index, [[self._buffer]])
        return self._buffer

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load some pages at a time directly into the blocks, or page by page if the CPU cannot access those.

        Raises KvBroken or IndexError.
        """
        pages = [target.in_place(block) for block in blocks]
        if not all(pages):
            for index, block in enumerate(blocks, start=first):
                target.write(self.page(index)[np.newaxis], [0], [block])
            return
        # Few enough for one system call, and for the processor's cache, where their checksums find them.
        count = max(1, min(_READ_BYTES // self._buffer.size, _MOST_PARTS // len(pages[0]) if pages else 1))
        for begin in range(0, len(pages), count):
            self._read(first + begin, pages[begin : begin + count])

    def uncache(self) -> None:
        """Take the file out of the file cache."""
        evict(self._descriptor)

    def _read(self, first: int, pages: Sequence[Sequence[Page]]) -> None:
        """Read consecutive pages, each into its parts."""
        last = first + len(pages) - 1
        if not 0 <= first <= last < len(self._header.checksums):
            raise IndexError(f"pages {first} to {last} of {len(self._header.checksums)}")
        self.damage = self._fill([part for parts in pages for part in parts], first)
        if self.damage is not None:
            raise KvBroken(self.damage, f"{self.node.key} is damaged from page {first} on: {self.damage.value}")
        for index, parts in enumerate(pages, start=first):
            digest = xxh3_64()
            for part in parts:
                digest.update(part.data)
            if digest.intdigest() != self._header.checksums[index]:
                self.damage = Damage.CHECKSUM
                raise KvBroken(self.damage, f"page {index} of {self.node.key} is damaged: {self.damage.value}")

    def _fill(self, parts: Sequence[Page], first: int) -> Damage | None:
        at = self._header.data_at + first * self._buffer.size
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
        return None


class NodeFileWriter(OrderedWriter):
    """A writer into an open file through one ``buffer``: each page is written when the next one is requested.

    Raises TierFull if the disk refuses a write. The file is whole once ``finish`` has returned.
    """

    def __init__(self, descriptor: int, layout: NodeFormat, node: KvNode, buffer: Page) -> None:
        super().__init__(layout.pages(node), self._buffer_for)
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

    def _buffer_for(self, index: int) -> Page:
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
