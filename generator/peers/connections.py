"""Connections to peers: made and authenticated, and kept for the next request."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from generator.peers.handshake import PeerKey, introduce
from generator.peers.stream import Stream
from generator.peers.wire import HEAD_BYTES, PageFormat, PeerUnreachable, Reason, host_and_port

Connect = Callable[[str, float], Stream]
"""Opens a connection to an address by a deadline, or raises PeerUnreachable."""


class Reply(NamedTuple):
    """A reply that has begun: its first head, and the stream that the rest comes from."""

    head: bytearray
    stream: Stream


class ConnectionPool:
    """Connections that ``connect`` opens. Each belongs to one request at a time. All methods are thread-safe.

    After a complete reply, a connection is kept for the next request to its address. At most ``most_idle`` of them are
    kept for all addresses together; those that were idle for longest are closed first.
    """

    def __init__(self, connect: Connect, most_idle: int) -> None:
        self._connect = connect
        self._most_idle = most_idle
        # Guards all that follows. Never held while a connection is used.
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Stream]] = []
        self._in_use: set[Stream] = set()
        self._closed = False

    @contextmanager
    def asking(self, address: str, request: bytes, deadline: float) -> Iterator[Reply]:
        """Send a framed request, and wait for the reply to begin. The block receives all of it, or raises.

        A request on a kept connection that the server has closed meanwhile is repeated on a new one. Raises
        PeerUnreachable.
        """
        reply = self._ask(address, request, deadline)
        try:
            yield reply
        except BaseException:
            self._discard(reply.stream)
            raise
        self._keep(address, reply.stream)

    def close(self) -> None:
        """Close all connections. Requests under way fail, and so do later ones. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            in_use = list(self._in_use)
        for _, stream in idle:
            stream.close()
        for stream in in_use:
            stream.end()

    def _ask(self, address: str, request: bytes, deadline: float) -> Reply:
        kept = self._take(address)
        if kept is not None:
            try:
                return self._begin(kept, request, deadline)
            except PeerUnreachable as error:
                # The same cause has probably ended the others.
                self._close_idle(address)
                if error.reason is not Reason.CUT:
                    raise
        return self._begin(self._open(address, deadline), request, deadline)

    def _begin(self, stream: Stream, request: bytes, deadline: float) -> Reply:
        head = bytearray(HEAD_BYTES)
        try:
            stream.send([request], deadline)
            stream.receive(head, deadline)
        except BaseException:
            self._discard(stream)
            raise
        return Reply(head, stream)

    def _take(self, address: str) -> Stream | None:
        """The kept connection to ``address`` that was used last, if there is one."""
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == address:
                    _, stream = self._idle.pop(at)
                    self._in_use.add(stream)
                    return stream
        return None

    def _open(self, address: str, deadline: float) -> Stream:
        if not self._closed:
            stream = self._connect(address, deadline)
            with self._lock:
                # The pool may have been closed while the connection was made.
                if not self._closed:
                    self._in_use.add(stream)
                    return stream
            stream.close()
        raise PeerUnreachable(Reason.CUT, f"{address} is not read from: the connections to peers are closed")

    def _keep(self, address: str, stream: Stream) -> None:
        surplus: list[tuple[str, Stream]] = []
        with self._lock:
            self._in_use.discard(stream)
            self._idle.append((address, stream))
            most = 0 if self._closed else self._most_idle
            while len(self._idle) > most:
                surplus.append(self._idle.pop(0))
        for _, idle in surplus:
            idle.close()

    def _discard(self, stream: Stream) -> None:
        with self._lock:
            self._in_use.discard(stream)
        stream.close()

    def _close_idle(self, address: str) -> None:
        with self._lock:
            stale = [stream for to, stream in self._idle if to == address]
            self._idle = [(to, stream) for to, stream in self._idle if to != address]
        for stream in stale:
            stream.close()


def connect(own_format: PageFormat, key: PeerKey, timeout_s: float, address: str, deadline: float) -> Stream:
    """A connection to ``address``, whose server knows ``key`` and has pages of ``own_format``. Raises PeerUnreachable.

    Connecting and authenticating take ``timeout_s`` seconds at most. Then no call on the stream waits longer than that
    for the peer. The system looks up host names within limits that it sets: deadlines hold for IP addresses.
    """
    deadline = min(deadline, time.monotonic() + timeout_s)
    connected = _connected(address, deadline)
    try:
        stream = Stream(connected, address, timeout_s)
        introduce(stream, key, own_format, deadline)
    except OSError as error:
        connected.close()
        raise PeerUnreachable(Reason.CUT, f"the connection to {address} was cut: {error.strerror}") from error
    except BaseException:
        connected.close()
        raise
    return stream


def _connected(address: str, deadline: float) -> socket.socket:
    """A socket that is connected to one of the hosts of ``address``."""
    try:
        host, port = host_and_port(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise PeerUnreachable(Reason.REFUSED, f"{address} leads nowhere: {error}") from error
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, place in found:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            with ExitStack() as opened:
                connecting = opened.enter_context(socket.socket(family, kind, protocol))
                connecting.settimeout(left)
                connecting.connect(place)
                opened.pop_all()
                return connecting
        except OSError as error:
            failure = error
    if isinstance(failure, TimeoutError):
        raise PeerUnreachable(Reason.TIMEOUT, f"{address} did not accept a connection in time") from failure
    raise PeerUnreachable(Reason.REFUSED, f"{address} does not accept connections: {failure.strerror}") from failure
