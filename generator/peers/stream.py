"""A TCP connection whose every call ends by a deadline."""

import math
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
from xxhash import xxh3_64

from generator.peers.wire import LENGTH_BYTES, MOST_MESSAGE_BYTES, PeerUnreachable, Reason, framed
from generator.tiers.base import Page

_MOST_PARTS = os.sysconf("SC_IOV_MAX")
"""The most buffers that one system call sends or fills."""
_MOST_FILLED_BYTES = 1 << 20
"""The most bytes that one system call fills. They are still in the CPU's cache when their checksum is computed."""
_LONGEST_WAIT_S = 3600.0

_Message = TypeVar("_Message")


class Stream:
    """An open connection to ``peer``, as its address names it in errors. It owns the socket.

    Deadlines are seconds of ``time.monotonic()``. No call waits longer than ``patience_s`` for the peer's next bytes,
    nor for the peer to take some.

    All calls but ``end`` and ``close`` raise PeerUnreachable: TIMEOUT, CUT, or INCOMPATIBLE for what is no message. The
    stream is of no use then. One thread uses it at a time, but any thread may call ``end`` and ``close``.
    """

    def __init__(self, connected: socket.socket, peer: str, patience_s: float = math.inf) -> None:
        self.peer = peer
        self._socket = connected
        self._patience_s = patience_s
        # Guards the closing of the socket: its descriptor may belong to another file afterwards.
        self._lock = threading.Lock()
        # The kernel limits the calls. Python's own timeouts would cost a poll for each call, which then moves less.
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, buffers: Sequence[bytes | memoryview], deadline: float) -> None:
        """Send the buffers, one after the other."""
        rooms = [memoryview(buffer) for buffer in buffers]
        at = 0
        while at < len(rooms):
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self._socket.sendmsg(rooms[at : at + _MOST_PARTS])
            except OSError as error:
                raise self._failure(error) from error
            while at < len(rooms) and sent >= len(rooms[at]):
                sent -= len(rooms[at])
                at += 1
            if sent:
                rooms[at] = rooms[at][sent:]

    def receive(self, room: bytearray, deadline: float) -> None:
        """Fill ``room``."""
        self._fill([memoryview(room)], 0, deadline)

    def receive_page(self, parts: Sequence[Page], next_head: bytearray, deadline: float) -> int:
        """Fill a page's parts, and then ``next_head``. Returns the XXH3-64 of the parts."""
        return self._fill([*(part.data for part in parts), memoryview(next_head)], len(parts), deadline)

    def send_message(self, message: msgspec.Struct, deadline: float) -> None:
        """Send a message."""
        self.send([framed(message)], deadline)

    def receive_message(
        self, decoder: msgspec.msgpack.Decoder[_Message], deadline: float, most_bytes: int = MOST_MESSAGE_BYTES
    ) -> _Message:
        """Receive a message. One of more than ``most_bytes`` bytes is an error, and takes no memory."""
        prefix = bytearray(LENGTH_BYTES)
        self.receive(prefix, deadline)
        length = int.from_bytes(prefix, "big")
        if length > most_bytes:
            raise self.violation(f"announces a message of {length} bytes, but at most {most_bytes} are allowed")
        body = bytearray(length)
        self.receive(body, deadline)
        try:
            return decoder.decode(body)
        except (ValueError, RecursionError) as error:
            raise self.violation(f"sends what is no message: {error}") from error

    def violation(self, what: str) -> PeerUnreachable:
        """The error of a peer that does not keep to the protocol. ``what`` it does follows its name."""
        return PeerUnreachable(Reason.INCOMPATIBLE, f"{self.peer} {what}")

    def end(self) -> None:
        """End the connection. A call that waits in another thread fails at once. The socket stays open."""
        # After an error, it has ended already, by the peer or by ``close``.
        with self._lock, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        with self._lock:
            self._socket.close()

    def _fill(self, rooms: list[memoryview], hashed: int, deadline: float) -> int:
        """Fill the rooms. Returns the XXH3-64 of the first ``hashed`` of them."""
        digest = xxh3_64()
        at = 0
        while at < len(rooms):
            # A call that is given no room returns as it does at the end of the connection.
            if not rooms[at]:
                at += 1
                continue
            self._limit(socket.SO_RCVTIMEO, deadline)
            try:
                got = self._socket.recvmsg_into(_within(rooms, at), 0, socket.MSG_WAITALL)[0]
            except OSError as error:
                raise self._failure(error) from error
            if not got:
                raise PeerUnreachable(Reason.CUT, f"{self.peer} closed the connection")
            while got:
                filled = room = rooms[at]
                if got < len(room):
                    filled, rooms[at] = room[:got], room[got:]
                if at < hashed:
                    digest.update(filled)
                got -= len(filled)
                if filled is room:
                    at += 1
        return digest.intdigest()

    def _limit(self, option: int, deadline: float) -> None:
        """Let the next call wait for as long as there is. ``option`` is the one that limits it in the kernel."""
        left = min(deadline - time.monotonic(), self._patience_s, _LONGEST_WAIT_S)
        if left <= 0:
            raise self._failure(TimeoutError())
        # struct timeval. Zero would be no limit.
        seconds, microseconds = divmod(max(1, int(left * 1e6)), 1_000_000)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, microseconds))
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> PeerUnreachable:
        # Without a byte moved within the limit, a call ends as one that would block.
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return PeerUnreachable(Reason.TIMEOUT, f"{self.peer} did not answer in time")
        return PeerUnreachable(Reason.CUT, f"the connection to {self.peer} was cut: {error.strerror or error}")


def _within(rooms: Sequence[memoryview], at: int) -> list[memoryview]:
    """The rooms from ``at`` on that one call may fill."""
    some, left = [], _MOST_FILLED_BYTES
    for room in rooms[at : at + _MOST_PARTS]:
        if len(room) >= left:
            some.append(room[:left])
            break
        some.append(room)
        left -= len(room)
    return some
