"""The worker process that reads documents with untrusted complexity, such as HTML, PDF and Office files.

It reads one document after another from standard input. The kernel limits its processor time and memory: at a limit the
process is killed or gets a MemoryError. It cannot write files.
"""

import sys

import msgspec

from protocol.errors import BrokenDocument, EncryptedDocument, InvalidEncoding
from retriever.loaders.base import LoadedText
from subprocesses.worker_process import confine, give_way, limit_processor_time, read_frame, write_frame


class LoadRequest(msgspec.Struct, frozen=True):
    """A document to read within ``cpu_s`` seconds of processor time."""

    media_type: str
    content: bytes
    cpu_s: int


class LoadReply(msgspec.Struct, frozen=True):
    """The loaded text, or the name of an error in ``REFUSALS`` and its message."""

    loaded: LoadedText | None = None
    refusal: str = ""
    message: str = ""


REFUSALS = {kind.__name__: kind for kind in (InvalidEncoding, BrokenDocument, EncryptedDocument)}


def _load(request: LoadRequest) -> LoadReply:
    from retriever.loaders.registry import LOADERS

    # The kernel counts whole seconds.
    limit_processor_time(request.cpu_s + 1)
    try:
        return LoadReply(LOADERS[request.media_type](request.content))
    except (InvalidEncoding, BrokenDocument, EncryptedDocument) as error:
        return LoadReply(refusal=type(error).__name__, message=error.message)
    except (MemoryError, RecursionError) as error:
        return LoadReply(
            refusal=BrokenDocument.__name__, message=f"reading the document exceeds the limits: {type(error).__name__}"
        )


def main(memory_bytes: int) -> None:
    """Read documents until standard input closes."""
    give_way()
    confine(memory_bytes)
    while True:
        try:
            request = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=LoadRequest)
        except EOFError:
            return
        write_frame(sys.stdout.buffer, _load(request))


if __name__ == "__main__":
    main(int(sys.argv[1]))
