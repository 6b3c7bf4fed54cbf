"""The server of a machine's pages, one a rank: its connections, and the answers to one peer's requests."""

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import structlog
from xxhash import xxh3_64_intdigest

from generator.peers.handshake import PeerKey, admit, refuse
from generator.peers.stream import Stream
from generator.peers.wire import (
    REQUESTS,
    Head,
    PageFormat,
    PeerUnreachable,
    ReadRequest,
    Reason,
    ReplyEnd,
    Status,
    encode_head,
    framed,
    joined,
)
from generator.tiers.base import KvBroken, KvMissing, KvTier, PageReader, TierUnavailable
from protocol.errors import ConfigError
from protocol.tiers import Tier

log = structlog.get_logger(__name__)

_MOST_DETAIL = 1000
"""The most characters of an error's message that are sent."""
_REFUSING_S = 0.1
"""A refusal goes to an empty send buffer, so sending it does not wait in practice."""
_PAUSE_S = 0.1
"""The pause after a connection could not be accepted, for example because the process has too many open files."""


class PageSender:
    """Sends pages of ``tiers`` over one connection, whose peer has authenticated.

    The connection ends after ``idle_s`` seconds without a request, or if a page is not taken within ``stalled_s``.
    """

    def __init__(self, stream: Stream, tiers: Mapping[Tier, KvTier], idle_s: float, stalled_s: float) -> None:
        self._stream = stream
        self._tiers = tiers
        self._idle_s = idle_s
        self._stalled_s = stalled_s

    def serve(self) -> None:
        """Answer requests until the peer goes or is idle. Raises PeerUnreachable if it goes during an answer."""
        while True:
            try:
                request = self._stream.receive_message(REQUESTS, time.monotonic() + self._idle_s)
            except PeerUnreachable as end:
                if end.reason is Reason.INCOMPATIBLE:
                    raise
                return
            # The tier has checked by then that the copy did not change while it was sent.
            outcome = self._answer(request)
            self._send([encode_head(Head.CLOSING), framed(outcome)])

    def _answer(self, request: ReadRequest) -> ReplyEnd:
        """Send the pages, and return how that ended."""
        tier = self._tiers.get(request.tier)
        if tier is None:
            return ReplyEnd(Status.MISSING, detail=f"{request.node} cannot be read: there is no {request.tier} tier")
        try:
            with tier.reading(request.node, request.pages) as reader:
                return self._send_pages(reader, request)
        except KvMissing as missing:
            return ReplyEnd(Status.MISSING, detail=_short(missing))
        except KvBroken as broken:
            return ReplyEnd(Status.BROKEN, broken.damage, _short(broken))
        except TierUnavailable as silent:
            # Nothing is known about the copy. The peer takes a cut connection for that.
            raise PeerUnreachable(Reason.CUT, _short(silent)) from silent

    def _send_pages(self, reader: PageReader, request: ReadRequest) -> ReplyEnd:
        # Page by page, because a page is valid only until the next one is read.
        for index in range(request.first, request.first + request.count):
            try:
                page = reader.page(index)
            except IndexError as error:
                return ReplyEnd(Status.NO_SUCH_PAGE, detail=_short(error))
            self._send([encode_head(Head.PAGE, xxh3_64_intdigest(page.data)), page.data])
        return ReplyEnd(Status.OK)

    def _send(self, buffers: list[bytes | memoryview]) -> None:
        self._stream.send(buffers, time.monotonic() + self._stalled_s)


def _short(error: Exception) -> str:
    """The error's message, which may list the pages of the node, within the limit of a message."""
    return str(error)[:_MOST_DETAIL]


class ServerLimits(NamedTuple):
    """Limits of a ``PageServer``: numbers of connections, and seconds.

    - ``peers`` and ``strangers`` are the most connections with and without authentication.
    - A stranger authenticates in ``handshake_s``. While strangers take all their places, no new peer is admitted, but
      those that are connected stay.
    - A peer without a request for ``idle_s`` is disconnected, and one that does not take a page within ``stalled_s``.
    """

    peers: int = 256
    strangers: int = 64
    handshake_s: float = 2.0
    idle_s: float = 60.0
    stalled_s: float = 5.0


class PageServer:
    """Serves pages of ``tiers`` to peers that know ``key`` and have KV of the same ``fingerprint``.

    It listens on ``host`` and ``port``, 0 for any free port, from its construction until ``close``. Each connection has
    its own thread. A connection beyond the limits is told that the server is busy. No error of one connection
    affects another one. The traffic is not encrypted.

    The tiers stay open until the server is closed. Raises ConfigError if the key is too short or the server cannot
    listen there.
    """

    def __init__(
        self,
        tiers: Mapping[Tier, KvTier],
        fingerprint: str,
        page_bytes: int,
        rank: int,
        key: str,
        host: str,
        port: int,
        limits: ServerLimits | None = None,
    ) -> None:
        self._tiers = tiers
        self._format = PageFormat(fingerprint, page_bytes, rank)
        self._key = PeerKey(key)
        self._limits = limits or ServerLimits()
        # Guards the connections, and that none begins once the server is closing.
        self._lock = threading.Lock()
        self._threads: dict[Stream, threading.Thread] = {}
        self._strangers: set[Stream] = set()
        self._closing = threading.Event()
        self._listener = _listening(host, port)
        self.address = joined(*self._listener.getsockname()[:2])
        """The address that the server listens on, ``host:port``."""
        self._acceptor = threading.Thread(target=self._accept, name="kv-peers", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """End all connections, and wait for their threads. Idempotent."""
        self._closing.set()
        # Closing it would not wake the thread that waits in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            threads = dict(self._threads)
        for stream in threads:
            stream.end()
        for thread in threads.values():
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connected, (host, port, *_) = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    log.warning("a peer's connection was not accepted", error=error.strerror)
                    self._closing.wait(_PAUSE_S)
                continue
            try:
                self._begin(connected, joined(host, port))
            except Exception as error:
                # For example, no thread can be started.
                log.warning("a peer's connection was not served", error=f"{type(error).__name__}: {error}")
                connected.close()

    def _begin(self, connected: socket.socket, peer: str) -> None:
        """Start a thread for a new connection, unless there are too many strangers."""
        stream = Stream(connected, peer)
        with self._lock:
            free = len(self._strangers) < self._limits.strangers
            if free:
                thread = threading.Thread(target=self._serve, args=(stream,), name="kv-peer", daemon=True)
                thread.start()
                self._threads[stream] = thread
                self._strangers.add(stream)
        if not free:
            log.warning("a peer's connection was refused", peer=peer, error="too many have not authenticated yet")
            with suppress(PeerUnreachable):
                refuse(stream, Reason.BUSY, "", time.monotonic() + _REFUSING_S)
            stream.close()

    def _serve(self, stream: Stream) -> None:
        try:
            deadline = time.monotonic() + self._limits.handshake_s
            admit(stream, self._key, self._format, lambda: self._take_place(stream), deadline)
            PageSender(stream, self._tiers, self._limits.idle_s, self._limits.stalled_s).serve()
        except PeerUnreachable as error:
            # A probe of the port connects and goes without a word.
            if error.reason is not Reason.CUT:
                log.warning("a peer was disconnected", reason=error.reason.value, error=str(error))
        except Exception:
            log.exception("a peer's request failed", peer=stream.peer)
        finally:
            with self._lock:
                self._threads.pop(stream)
                self._strangers.discard(stream)
            stream.close()

    def _take_place(self, stream: Stream) -> bool:
        """Count a stranger as a peer, if there is a place."""
        with self._lock:
            if len(self._threads) - len(self._strangers) >= self._limits.peers:
                return False
            self._strangers.remove(stream)
            return True


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot listen on {joined(host, port)} for peers: {why}") from error
