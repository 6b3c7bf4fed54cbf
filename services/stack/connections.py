"""A server's connections: bounded in number by the limit of open files, and each with an end in bounded time."""

import asyncio
import resource
from collections.abc import Callable

LINGER_S = 10.0
LINGER_BYTES = 8 * 1024 * 1024
"""How long, and how much, a client may go on sending of the body of a request that is answered already."""

FLUSH_S = 60.0
"""How long a client may take for the last bytes of a closed connection: at most what a server buffers unread."""


def most_connections() -> int:
    """Half of the files that this process may open. The rest is for those that are accepted at once, and for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if soft == resource.RLIM_INFINITY else max(1, soft // 2)


class Connections:
    """Keeps at most ``most`` connections, by ending those that wait for a request: the longest wait first.

    So however many connections strangers open, one more is always accepted, and has time to send its request. Whose
    connections wait is not asked: behind a proxy, all have one address.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # In the order in which their waits began.
        self._waiting: dict[asyncio.Transport, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, transport: asyncio.Transport) -> None:
        """Count a new connection, which waits for its first request."""
        self._open.add(transport)
        self._waiting[transport] = None
        while len(self._open) > self._most and self._waiting:
            longest = next(iter(self._waiting))
            self.lost(longest)
            longest.abort()

    def busy(self, transport: asyncio.Transport) -> None:
        """Keep a connection: its request has arrived."""
        self._waiting.pop(transport, None)

    def waits(self, transport: asyncio.Transport) -> None:
        """Note that a connection waits for its next request."""
        if transport in self._open:
            self._waiting[transport] = None

    def lost(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended."""
        self._open.discard(transport)
        self._waiting.pop(transport, None)


class ClosingTransport(asyncio.Transport):
    """The server's side of a connection, which it may close at any time.

    Closing a socket with unread bytes makes the client lose the reply, too. So while it ``sends`` a body, it is told
    the end first, and what it sends is dropped for a while. Either way, the connection has ended after a while.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, sends: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._sends = sends
        self._closing = False
        self._dropped = 0
        self._end: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """End the connection once what was written has been sent."""
        if self._closing:
            return
        self._closing = True
        if self._sends() and self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
            self._end = self._loop.call_later(LINGER_S, self._transport.abort)
        else:
            self._transport.close()
            self._end = self._loop.call_later(FLUSH_S, self._transport.abort)

    def abort(self) -> None:
        """End the connection now."""
        self._closing = True
        self._transport.abort()

    def lost(self) -> None:
        """Note that the connection has ended."""
        self._closing = True
        if self._end is not None:
            self._end.cancel()

    def drop(self, size: int) -> None:
        """Count bytes that arrived in vain. Ends the connection if they are too many."""
        self._dropped += size
        if self._dropped > LINGER_BYTES:
            self.abort()

    def is_closing(self) -> bool:
        """Whether the connection is ending."""
        return self._closing or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, unless the connection is ending."""
        if not self._closing:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Receive nothing for a while."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Information about the socket."""
        return self._transport.get_extra_info(name, default)
