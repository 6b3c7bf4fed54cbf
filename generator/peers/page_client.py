"""The client of other machines' page servers."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from generator.peers.connecting import Connector
from generator.peers.connection_pool import ConnectionPool
from generator.peers.peer_key import PeerKey
from generator.peers.remote_reader import RemoteCopy, RemoteReader
from generator.peers.wire import PageFormat
from generator.tiers.base import Page
from protocol.kv import Pages
from protocol.tiers import Tier

_BUFFER_BYTES = 8 << 20
"""Pages that cannot be received in place are written to their blocks in batches of this size, or of one page."""


class PeerPages:
    """Reads the pages of ``rank`` in other machines' memory and disks. Thread-safe.

    Peers have the same ``key``, and KV of the same ``fingerprint``. One that does not answer for ``timeout_s`` seconds
    is given up. Connections stay open for later reads, ``most_idle`` of them at most. Raises ConfigError if the key is
    too short.
    """

    def __init__(
        self, fingerprint: str, page_bytes: int, rank: int, key: str, timeout_s: float, most_idle: int = 32
    ) -> None:
        connector = Connector(PageFormat(fingerprint, page_bytes, rank), PeerKey(key), timeout_s)
        self._pool = ConnectionPool(connector.connect, most_idle)
        self._buffer_shape = (max(1, _BUFFER_BYTES // page_bytes), page_bytes)
        self._spare_buffers: list[Page] = []

    @contextmanager
    def reading(
        self, address: str, key: str, tier: Tier, pages: Pages | None, deadline: float
    ) -> Iterator[RemoteReader]:
        """Read the copy of node ``key`` in a tier of the peer ``address``, ``host:port``.

        ``pages`` locate it in the peer's host memory; other tiers ignore it. All reads end by ``deadline``, in seconds
        of ``time.monotonic()``. Nothing is sent before the first read.
        """
        taken: list[Page] = []

        def buffer() -> Page:
            if not taken:
                taken.append(self._spare_buffer())
            return taken[0]

        try:
            yield RemoteReader(self._pool, RemoteCopy(address, key, tier, pages), deadline, buffer)
        finally:
            self._spare_buffers += taken

    def close(self) -> None:
        """Close all connections. Reads under way fail, and so do later ones. Idempotent."""
        self._pool.close()
        self._spare_buffers.clear()

    def _spare_buffer(self) -> Page:
        try:
            return self._spare_buffers.pop()
        except IndexError:
            return np.empty(self._buffer_shape, np.uint8)
