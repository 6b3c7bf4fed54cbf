"""Decode server-sent events from bytes as soon as they are complete."""

import codecs
from typing import NamedTuple


class ServerSentEvent(NamedTuple):
    """One event. ``name`` defaults to ``message``."""

    name: str
    data: str


class SseDecoder:
    """Decodes chunks of any size into events, as the HTML standard defines them.

    Lines end in LF, CR or CRLF. An event that is cut off by the end of the stream is dropped.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line = ""
        self._after_return = False
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete after this chunk."""
        text = self._utf8.decode(chunk)
        if not text:
            return []
        if self._after_return:
            # This LF belongs to a CRLF whose CR has already ended the line.
            text = text.removeprefix("\n")
        self._after_return = text.endswith("\r")
        *lines, self._line = (self._line + text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        return [event for line in lines if (event := self._handle_line(line)) is not None]

    def _handle_line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._end_event()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        # A line that starts with a colon is a comment and has an empty field.
        return None

    def _end_event(self) -> ServerSentEvent | None:
        event = ServerSentEvent(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name = ""
        self._data = []
        return event
