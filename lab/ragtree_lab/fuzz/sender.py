"""Sends a request over a connection of its own, and reads what comes back."""

import asyncio
import http.client
import io
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from ragtree_lab.fuzz.lateness import Lateness
from ragtree_lab.fuzz.requests import Caller, Request

_RESET = struct.pack("ii", 1, 0)
_MOST_BYTES = 16 * 1024 * 1024
_MOST_HEAD = 65_536
_BODILESS = re.compile(rb"HTTP/1\.1 (204|304)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_RUDE_PATIENCE_S = 3.0
"""A rude client that gets no answer leaves after this long: it may have asked for nothing."""


class End(StrEnum):
    """How a connection ended."""

    ANSWERED = "answered"
    CLOSED = "closed by the stack"
    LEFT = "left by the client"
    RESET = "reset by the stack"
    REFUSED = "not accepted"
    TIMEOUT = "without an end"


class Answer(NamedTuple):
    """One HTTP answer. ``whole`` unless it was cut off."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool


class Outcome(NamedTuple):
    """What became of a request. Times are on the machine's monotonic clock.

    Of the time from its beginning to its end, the client itself was ``late_s`` late.
    """

    end: End
    answers: tuple[Answer, ...]
    begun: float
    ended: float
    late_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it took the stack."""
        return self.ended - self.begun - self.late_s


class Sender:
    """Sends requests to the stack at ``url`` with the callers' ``keys``. An answer may take ``timeout_s``.

    ``lateness`` says how late this client is, if it is watched.
    """

    def __init__(
        self, url: str, keys: Mapping[Caller, str], lateness: Lateness | None = None, timeout_s: float = 120.0
    ) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        self._keys = keys
        self._timeout_s = timeout_s
        self._lateness = lateness or Lateness()

    async def send(self, request: Request) -> Outcome:
        """Send one request and return what became of it. Raises nothing that the stack can cause."""
        begun = time.monotonic()
        received = bytearray()
        patience = request.leaves_s if request.leaves_s is not None else self._timeout_s
        if request.rude:
            patience = min(patience, _RUDE_PATIENCE_S + sum(piece.after_s for piece in request.pieces))
        left = request.rude or request.leaves_s is not None
        end = End.LEFT if left else End.TIMEOUT
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                end = await self._exchange(request, received)
        ended = time.monotonic()
        late_s = self._lateness.between(begun, ended)
        return Outcome(end, parsed(bytes(received), request.method), begun, ended, late_s)

    async def _exchange(self, request: Request, received: bytearray) -> End:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return End.REFUSED
        writing = asyncio.create_task(self._write(request, writer))
        try:
            while chunk := await reader.read(65_536):
                received += chunk[: max(0, _MOST_BYTES - len(received))]
                # Rude requests may get several answers.
                if not request.rude and _is_whole(received, request.method):
                    return End.ANSWERED
            return End.CLOSED
        except OSError:
            return End.RESET
        finally:
            writing.cancel()
            if request.resets:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort() if request.resets else writer.close()

    async def _write(self, request: Request, writer: asyncio.StreamWriter) -> None:
        # A stack that has refused a request need not read the rest of it.
        with suppress(OSError):
            for piece in request.sent(self._keys):
                if piece.after_s:
                    await asyncio.sleep(piece.after_s)
                writer.write(piece.content)
                await writer.drain()


class _Received:
    """Bytes in the form in which ``http.client`` reads a socket."""

    def __init__(self, content: bytes) -> None:
        self._file = _Unclosed(content)

    def makefile(self, _mode: str) -> io.BytesIO:
        return self._file


class _Unclosed(io.BytesIO):
    """Bytes of several answers. ``http.client`` closes its file after each."""

    def close(self) -> None:
        """Stay open for the next answer."""


def _is_whole(received: bytearray, method: str) -> bool:
    """Return whether these bytes are a whole answer. One without a length is whole when the connection ends."""
    head, end, _ = bytes(received[:_MOST_HEAD]).partition(b"\r\n\r\n")
    if not end or head.startswith(b"HTTP/1.1 1"):
        return False
    if method == "HEAD" or _BODILESS.match(head):
        return True
    if length := _LENGTH.search(head):
        return len(received) - len(head) - len(end) >= int(length.group(1))
    return bool(_CHUNKED.search(head)) and received.endswith(b"0\r\n\r\n")


def parsed(received: bytes, method: str = "GET") -> tuple[Answer, ...]:
    """Return the HTTP answers in these bytes. What is no answer is left out."""
    source = _Received(received)
    answers: list[Answer] = []
    while True:
        response = http.client.HTTPResponse(source, method=method)  # type: ignore[arg-type]  # only makefile is used
        try:
            response.begin()
        except (http.client.HTTPException, OSError, ValueError):
            return tuple(answers)
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            body, whole = response.read(), True
        except http.client.IncompleteRead as error:
            body, whole = error.partial, False
        except (http.client.HTTPException, ValueError):
            body, whole = b"", False
        answers.append(Answer(response.status, headers, body, whole))
