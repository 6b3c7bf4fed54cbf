"""HTTP as the gateway's own server speaks it."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_UNREAD_BYTES = 64 * 1024
"""The longest head, or trailer, of a request; uvicorn's other parser has the same bound."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast parser with a bound on what it holds back: heads that do not end would fill the memory.

    A client that sends more than ``MOST_UNREAD_BYTES`` of what is no body is told 400, and its connection is closed.
    """

    _unread = 0

    def data_received(self, data: bytes) -> None:
        """Take in what the client sent; the parser's callbacks say how far it made sense."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_UNREAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's head is too long.")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body is there; how much of it there may be, the app says."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._unread = 0
        super().on_message_complete()
