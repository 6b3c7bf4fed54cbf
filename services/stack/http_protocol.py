"""The HTTP protocol of the gateway's own server, with bounds on what a client can make it hold or do."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.stack.connections import ClosingTransport, Connections, most_connections

MOST_UNREAD_BYTES = 64 * 1024
"""The longest head, or trailer, of a request. uvicorn's other parser has the same limit."""

MOST_HEADERS = 256
"""Headers of a request. Looking one up takes time for each."""

MOST_PIPELINED = 64
"""Requests that a client may send before the reply to its first."""

MOST_SMALL_PIECES = 4096
"""Pieces in which a body may arrive before they have to be ``FAIR_PIECE_BYTES`` long on average."""

FAIR_PIECE_BYTES = 64

HEAD_S = 10.0
"""How long a request's head may take to arrive, from its first byte or from the opening of the connection."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast parser for clients that are not trusted.

    A client that sends more than ``MOST_UNREAD_BYTES`` outside of a body, or too many headers, requests or pieces of a
    body, gets a 400, and its connection is closed. So is one whose head does not arrive in ``HEAD_S``, and if there are
    too many connections, the one that has waited longest. No request is upgraded: the gateway has no WebSockets.
    """

    open_connections: ClassVar[Connections] = Connections(most_connections())
    """Those of this process, which has one limit of open files."""

    transport: ClosingTransport
    _keeps_alive = False
    _unread = 0
    _pieces = _piece_bytes = 0
    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take up a connection, and wait for its first head."""
        super().connection_made(ClosingTransport(transport, self.loop, self._awaits_body))
        self._head_due = self.loop.call_later(HEAD_S, self.transport.abort)
        self.open_connections.opened(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self.open_connections.lost(self.transport)
        self._head_arrived()
        self.transport.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse new bytes. The parser's callbacks reset the count of unread bytes."""
        if self.transport.is_closing():
            self.transport.drop(len(data))
            return
        if self._head_due is None and (self.cycle is None or self.cycle.response_complete):
            self._head_due = self.loop.call_later(HEAD_S, self.transport.abort)
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_UNREAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header, or one of the trailer."""
        if len(self.headers) >= MOST_HEADERS:
            raise _TooMany("headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the end of the head."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _TooMany("requests at once")
        self._unread = self._pieces = self._piece_bytes = 0
        self._head_arrived()
        self.open_connections.busy(self.transport)
        super().on_headers_complete()
        # Until the body has arrived. If it is answered before that, nobody reads on to find the next request after it.
        self._keeps_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body. The app limits the body's size."""
        self._unread = 0
        self._pieces += 1
        self._piece_bytes += len(body)
        if self._pieces > MOST_SMALL_PIECES and self._piece_bytes < FAIR_PIECE_BYTES * self._pieces:
            raise _TooMany("small pieces of a body")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of the request."""
        self._unread = 0
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete:
            self.open_connections.waits(self.transport)

    def shutdown(self) -> None:
        """End the connection after the current request."""
        self._keeps_alive = False
        super().shutdown()

    def _should_upgrade_to_ws(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: anybody could fill the log with it."""

    def _awaits_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def _head_arrived(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


class _TooMany(Exception):
    """Ends the parsing of a request, which gets a 400."""

    def __init__(self, what: str) -> None:
        super().__init__(f"The client sends too many {what}.")
