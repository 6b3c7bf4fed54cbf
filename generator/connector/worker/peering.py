"""A worker's connection with other locations: it serves its tiers to them, and reads theirs."""

from contextlib import AbstractContextManager

from generator.peers.page_client import PeerPages, RemoteReader
from generator.peers.page_server import PageServer
from generator.peers.wire import PeerUnreachable, Reason
from generator.settings import PeerSettings
from generator.tiers.base import KvTier
from protocol.kv import PeerCopy, Peers
from protocol.tiers import Tier


class Peering:
    """The server of a rank's pages, and the pages of the same rank elsewhere, among those that know the ``key``.

    A load may wait for them for ``timeout_s`` seconds. Raises ConfigError if the server cannot be opened.
    """

    def __init__(
        self,
        settings: PeerSettings,
        key: str,
        tiers: dict[Tier, KvTier],
        fingerprint: str,
        page_bytes: int,
        rank: int,
    ) -> None:
        port = settings.port + rank if settings.port else 0
        self._server = PageServer(tiers, fingerprint, page_bytes, rank, key, settings.host, port)
        self._pages = PeerPages(fingerprint, page_bytes, rank, key, settings.timeout_s)
        self._rank = rank
        self.timeout_s = settings.timeout_s

    @property
    def peers(self) -> Peers:
        """Where this rank serves its tiers, and how long its loads wait for others."""
        return Peers((self._server.address,), self.timeout_s)

    def reading(self, peer: PeerCopy, key: str, deadline: float) -> AbstractContextManager[RemoteReader]:
        """Read a node's copy at a peer until ``deadline``, in seconds of the monotonic clock.

        Raises PeerUnreachable, KvMissing or KvBroken, here or while reading.
        """
        if self._rank >= len(peer.addresses):
            raise PeerUnreachable(Reason.REFUSED, f"no instance serves rank {self._rank} at {peer.location}")
        return self._pages.reading(peer.addresses[self._rank], key, peer.tier, peer.pages, deadline)

    def close(self) -> None:
        """Serve nothing more, and end what is being read."""
        self._server.close()
        self._pages.close()
