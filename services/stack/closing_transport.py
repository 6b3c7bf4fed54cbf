"""A connection whose end takes a bounded time."""

import asyncio
from collections.abc import Callable

LINGER_S = 10.0
LINGER_BYTES = 8 * 1024 * 1024
"""How long, and how much, a client may go on sending of the body of a request that is answered already."""

FLUSH_S = 60.0
"""How long a client may take for the last bytes of a closed connection: at most what a server buffers unread."""


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
