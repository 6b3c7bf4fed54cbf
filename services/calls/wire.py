"""The messages of a connection, each after its length in four bytes."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from protocol.errors import InternalError, RagtreeError
from services.calls.method import Parameters, encoder

TOKEN_BYTES = 32
_LENGTH_BYTES = 4
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 20_000}
"""A machine that has vanished is noticed within 20 seconds. Without, its calls would wait for ever."""
WELCOME = b"\x01"
"""The server's answer to the token."""


class Address(msgspec.Struct, frozen=True):
    """Where a replica serves these ``methods``, to callers that know its ``token``. Ray Serve tells nobody else."""

    host: str
    port: int
    token: bytes
    methods: frozenset[str]

    def __repr__(self) -> str:
        return f"{self.host}:{self.port}"


class Call(msgspec.Struct, array_like=True, tag=0):
    """A call, under a ``number`` that the caller has not used before on this connection."""

    number: int
    method: str
    arguments: msgspec.Raw


class Cancel(msgspec.Struct, array_like=True, tag=1):
    """The caller no longer wants the call's result."""

    number: int


class Item(msgspec.Struct, array_like=True, tag=2):
    """What a stream has yielded."""

    number: int
    value: msgspec.Raw


class Returned(msgspec.Struct, array_like=True, tag=3):
    """The call is over: its ``value``, None for a stream."""

    number: int
    value: msgspec.Raw


class Raised(msgspec.Struct, array_like=True, tag=4):
    """The call is over: it raised the error of this ``code``, made of these ``arguments``."""

    number: int
    code: str
    arguments: msgspec.Raw


class Dropped(msgspec.Struct, array_like=True, tag=5):
    """The call is over without a result: it was cancelled, or the replica stops.

    If it had not ``begun``, another replica can have it.
    """

    number: int
    begun: bool


class Leave(msgspec.Struct, array_like=True, tag=6):
    """The replica stops. The caller closes the connection after its last call."""


Reply = Item | Returned | Raised | Dropped
calls: msgspec.msgpack.Decoder[Call | Cancel] = msgspec.msgpack.Decoder(Call | Cancel)
replies: msgspec.msgpack.Decoder[Reply | Leave] = msgspec.msgpack.Decoder(Reply | Leave)


class Wire:
    """Sends and receives messages over a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        connection: socket.socket = writer.get_extra_info("socket")
        # The other side may be gone already.
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: Call | Cancel | Reply | Leave) -> None:
        """Send a message, in order. Does nothing if the connection is lost: who receives learns of that."""
        if not self._writer.is_closing():
            encoded = encoder.encode(message)
            self._writer.write(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)

    def welcome(self) -> None:
        """Tell the caller that its token is the right one."""
        self._writer.write(WELCOME)

    async def drain(self) -> None:
        """Wait until most of what was sent has left this process. Returns at once if the connection is lost."""
        with suppress(OSError):
            await self._writer.drain()

    @property
    def closing(self) -> bool:
        """Whether nothing is sent any more."""
        return self._writer.is_closing()

    async def receive(self) -> bytes:
        """Return the next message. Raises OSError or asyncio.IncompleteReadError if the connection is lost."""
        length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection after what was sent."""
        self._writer.close()


def raised(number: int, error: RagtreeError) -> Raised:
    """The message of an error. It arrives as the nearest kind of error that every process knows."""
    kind = next(kind for kind in type(error).__mro__ if kind in _PARAMETERS)
    try:
        arguments = _PARAMETERS[kind].encode(error.args, {})
    except (TypeError, ValueError, NotImplementedError):
        # An error of a subclass with other arguments, or about text that is no Unicode.
        arguments = _PARAMETERS[kind].encode((_readable(error.message), error.param and _readable(error.param)), {})
    return Raised(number, kind.code, msgspec.Raw(arguments))


def error_of(message: Raised) -> RagtreeError:
    """The error of a message. Raises msgspec.DecodeError if no such error can be made of its arguments."""
    kind = _BY_CODE.get(message.code, InternalError)
    return kind(*_PARAMETERS[kind].decode(message.arguments))


def _readable(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


def _kinds(root: type[RagtreeError]) -> Iterator[type[RagtreeError]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == RagtreeError.__module__:
            yield from _kinds(kind)


_PARAMETERS = {kind: Parameters(kind.__init__) for kind in _kinds(RagtreeError)}
_BY_CODE = {kind.code: kind for kind in reversed(list(_kinds(RagtreeError)))}
