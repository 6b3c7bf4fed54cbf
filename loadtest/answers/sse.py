"""Server-sent events out of bytes, as soon as the bytes that end them are there."""

import codecs
from typing import NamedTuple


class ServerSentEvent(NamedTuple):
    """One event; ``name`` is ``message`` where the server gave none."""

    name: str
    data: str


class SseDecoder:
    """Bytes in, cut wherever the network cut them; whole events out, as the HTML standard reads them.

    Lines end in LF, CR or CRLF. An event that the stream's end cuts off is none.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line = ""
        self._after_return = False
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that end in this chunk."""
        text = self._utf8.decode(chunk)
        if not text:
            return []
        if self._after_return:
            # The other half of a CRLF whose CR has ended the line already.
            text = text.removeprefix("\n")
        self._after_return = text.endswith("\r")
        *lines, self._line = (self._line + text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        return [event for line in lines if (event := self._take(line)) is not None]

    def _take(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._end()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        # A line that begins with a colon is a comment: its field is empty.
        return None

    def _end(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name = ""
        self._data = []
        return event
