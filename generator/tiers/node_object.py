"""One node's pages in an object of a store: several are read with each request, all are written at once."""

from collections.abc import Sequence

import numpy as np
from xxhash import xxh3_64_intdigest

from generator.tiers.base import Damage, KvBroken, KvMissing, OrderedWriter, Page, PageReader, PageTarget
from generator.tiers.node_format import NodeFormat, NodeHeader
from generator.tiers.object_requests import ObjectRequests
from protocol.kv import KvNode

_REQUEST_BYTES = 8 << 20


class ObjectReader(PageReader):
    """Reads the version ``e_tag`` of an object.

    ``damage`` is the damage found so far, if any. Each method that reads raises TierUnavailable if the store does not
    answer.
    """

    def __init__(
        self, requests: ObjectRequests, path: str, e_tag: str | None, header: NodeHeader, page_bytes: int
    ) -> None:
        self.node = header.node
        self.damage: Damage | None = None
        self._requests = requests
        self._path = path
        self._e_tag = e_tag
        self._header = header
        self._page_bytes = page_bytes
        self._at_once = max(1, _REQUEST_BYTES // page_bytes)
        # The pages of the last request, the first of which has this number.
        self._first = 0
        self._fetched = np.empty((0, page_bytes), np.uint8)

    def page(self, index: int) -> Page:
        """Page ``index``, with its checksum verified. Fetches those after it, too. Raises KvBroken or IndexError."""
        row = index - self._first
        if not 0 <= row < len(self._fetched):
            count = min(self._at_once, max(1, len(self._header.checksums) - index))
            self._fetched, self._first, row = self._fetch(index, count), index, 0
        page: Page = self._fetched[row]
        return page

    def load(self, first: int, blocks: Sequence[int], target: PageTarget) -> None:
        """Load the pages of each request from the memory that the network has filled. Raises KvBroken or IndexError."""
        for begin in range(0, len(blocks), self._at_once):
            part = blocks[begin : begin + self._at_once]
            target.write(self._fetch(first + begin, len(part)), range(len(part)), part)

    def uncache(self) -> None:
        """Forget the pages that were fetched."""
        self._fetched = self._fetched[:0]

    def _fetch(self, first: int, count: int) -> Page:
        checksums = self._header.checksums[max(first, 0) : first + count]
        if first < 0 or len(checksums) != count:
            raise IndexError(f"pages {first} to {first + count - 1} of {len(self._header.checksums)}")
        at = self._header.data_at + first * self._page_bytes
        try:
            data = self._requests.get(self._path, at, at + count * self._page_bytes, self._e_tag).data
            if len(data) != count * self._page_bytes:
                raise KvBroken(Damage.SIZE, f"the object {self._path} is too short")
            pages = np.frombuffer(data, np.uint8).reshape(count, self._page_bytes)
            for index, checksum in enumerate(checksums):
                if xxh3_64_intdigest(pages[index].data) != checksum:
                    raise KvBroken(Damage.CHECKSUM, f"page {first + index} of {self.node.key} is damaged: checksum")
        except KvMissing as error:
            self.damage = Damage.CHANGED
            raise KvBroken(Damage.CHANGED, f"the object {self._path} was deleted while it was read") from error
        except KvBroken as broken:
            self.damage = broken.damage
            raise
        return pages


class ObjectWriter(OrderedWriter):
    """A writer whose pages are filled in place, after the header, which has their checksums.

    So the whole node is in memory until it is uploaded: an upload begins with the header.
    """

    def __init__(self, layout: NodeFormat, node: KvNode) -> None:
        super().__init__(layout.pages(node), lambda index: self._pages[index])
        self._layout = layout
        self._node = node
        self._content = np.empty(layout.file_bytes(node), np.uint8)
        self._header_bytes = self._content.size - self._count * layout.page_bytes
        self._pages = self._content[self._header_bytes :].reshape(self._count, layout.page_bytes)

    @property
    def content(self) -> memoryview:
        """The bytes of the object, once ``finish`` has returned."""
        return self._content.data

    def finish(self) -> None:
        """Write the header. Raises ValueError unless every page was filled."""
        super().finish()
        checksums = [xxh3_64_intdigest(page.data) for page in self._pages]
        self._content[: self._header_bytes] = np.frombuffer(self._layout.encode(self._node, checksums), np.uint8)
