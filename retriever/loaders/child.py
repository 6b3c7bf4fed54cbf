"""The process that reads documents of formats whose readers can be made to work without end.

It takes one document after another from standard input, within bounds on processor time and memory that the kernel
keeps: a process that exceeds one is ended, or fails with a MemoryError. It may write no file.
"""

import resource
import struct
import sys
from typing import BinaryIO

import msgspec

from protocol.errors import BrokenDocument, EncryptedDocument, InvalidEncoding
from retriever.loaders.base import LoadedText

_LENGTH = struct.Struct("<Q")


class LoadRequest(msgspec.Struct, frozen=True):
    """A document to read, in at most ``cpu_s`` seconds of processor time."""

    media_type: str
    content: bytes
    cpu_s: int


class LoadReply(msgspec.Struct, frozen=True):
    """What was read, or the name of the error in ``REFUSALS`` that it raised, and its message."""

    loaded: LoadedText | None = None
    refusal: str = ""
    message: str = ""


REFUSALS = {kind.__name__: kind for kind in (InvalidEncoding, BrokenDocument, EncryptedDocument)}


def write_frame(stream: BinaryIO, message: msgspec.Struct) -> None:
    """Send a message. Raises OSError where nobody reads any more."""
    encoded = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(encoded)))
    stream.write(encoded)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes:
    """The next message, encoded. Raises EOFError where the other end is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return body


def _answer(request: LoadRequest) -> LoadReply:
    from retriever.loaders.registry import LOADERS

    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + request.cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    try:
        return LoadReply(LOADERS[request.media_type](request.content))
    except (InvalidEncoding, BrokenDocument, EncryptedDocument) as error:
        return LoadReply(refusal=type(error).__name__, message=error.message)
    except (MemoryError, RecursionError) as error:
        return LoadReply(refusal=BrokenDocument.__name__, message=f"it takes too much to read: {type(error).__name__}")


def main(memory_bytes: int) -> None:
    """Read documents until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            request = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=LoadRequest)
        except EOFError:
            return
        write_frame(sys.stdout.buffer, _answer(request))


if __name__ == "__main__":
    main(int(sys.argv[1]))
