"""The HTTP protocol of the gateway's own server."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_UNREAD_BYTES = 64 * 1024
"""The longest head, or trailer, of a request. uvicorn's other parser has the same limit."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast parser with a limit on buffered bytes: a head that never ends would fill the memory.

    A client that sends more than ``MOST_UNREAD_BYTES`` outside of a body gets a 400, and its connection is closed.
    """

    _unread = 0

    def data_received(self, data: bytes) -> None:
        """Parse new bytes. The parser's callbacks reset the count of unread bytes."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_UNREAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")

    def on_headers_complete(self) -> None:
        """Handle the end of the head."""
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Handle a part of the body. The app limits the body's size."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of the request."""
        self._unread = 0
        super().on_message_complete()
