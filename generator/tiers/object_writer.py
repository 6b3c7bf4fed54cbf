"""Collects one node's pages in memory, as the content of an object."""

import numpy as np
from xxhash import xxh3_64_intdigest

from generator.tiers.base import Page
from generator.tiers.node_format import NodeFormat
from generator.tiers.writers import OrderedWriter
from protocol.kv import KvNode


class ObjectWriter(OrderedWriter):
    """A writer whose pages are filled in place, behind the header, which has their checksums.

    So the whole node is in memory until it is uploaded: an upload begins with the header.
    """

    def __init__(self, layout: NodeFormat, node: KvNode) -> None:
        super().__init__(layout.pages(node))
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

    def _buffer(self, index: int) -> Page:
        page: Page = self._pages[index]
        return page
