"""The messages of a connection, each after its length in four bytes."""

import asyncio
import socket
from collections.abc import Iterator

import msgspec

from protocol.errors import InternalError, RagtreeError
from services.calls.method import Parameters, encoder

TOKEN_BYTES = 32
_LENGTH_BYTES = 4
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 10_000}
"""A machine that has vanished is noticed after about ten seconds. Without, its calls would wait for ever."""


class Address(msgspec.Struct, frozen=True):
    """Where a replica serves these ``methods``, to callers that know its ``token``. Ray Serve tells nobody else."""

    host: str
    port: int
    token: bytes
    methods: frozenset[str]


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
    """The replica stops. If the call had not ``begun``, another replica can have it."""

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
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: Call | Cancel | Reply | Leave) -> None:
        """Send a message, in order. Does nothing if the connection is lost: who receives learns of that."""
        if not self._writer.is_closing():
            encoded = encoder.encode(message)
            self._writer.write(len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded)

    async def drain(self) -> None:
        """Wait until the other side has read most of what was sent. Raises OSError if it is gone."""
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next message. Raises OSError or asyncio.IncompleteReadError if the connection is lost."""
        length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
        return await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection after what was sent."""
        self._writer.close()


def raised(number: int, error: RagtreeError) -> Raised:
    """The message of an error. One that has no code of its own arrives as the kind of error that it is."""
    return Raised(number, error.code, msgspec.Raw(_KINDS[error.code][1].encode(error.args, {})))


def error_of(message: Raised) -> RagtreeError:
    """The error of a message. Raises msgspec.DecodeError if no such error can be made of its arguments."""
    kind, parameters = _KINDS.get(message.code, _KINDS[InternalError.code])
    return kind(*parameters.decode(message.arguments))


def _kinds(root: type[RagtreeError]) -> Iterator[type[RagtreeError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


_KINDS: dict[str, tuple[type[RagtreeError], Parameters]] = {}
for _kind in _kinds(RagtreeError):
    _KINDS.setdefault(_kind.code, (_kind, Parameters(_kind.__init__)))
