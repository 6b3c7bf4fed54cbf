"""Messages between a process and its worker, over the worker's standard input and output."""

import struct
from typing import BinaryIO

import msgspec

_LENGTH = struct.Struct("<Q")


def write_frame(stream: BinaryIO, message: object) -> None:
    """Send a message, encoded as MessagePack. Raises OSError if the other end is closed."""
    encoded = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(encoded)))
    stream.write(encoded)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes:
    """Receive an encoded message. Raises EOFError if the other end is closed."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return body
