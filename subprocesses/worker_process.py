"""A process that does work for this one, and answers one message after another over its standard input and output.

What the process itself uses is here, too: how messages are read and written, and the limits that it sets itself before
it reads foreign input. The kernel enforces them.
"""

import os
import resource
import struct
import subprocess
import sys
from contextlib import suppress
from typing import BinaryIO, TypeVar

import msgspec

Reply = TypeVar("Reply")


_LENGTH = struct.Struct("<Q")
_NICENESS = 5


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


class WorkerEnded(Exception):
    """The process is gone: it was ended, or the kernel has ended it."""


class WorkerProcess:
    """Runs a ``module`` of Python with ``arguments``, which reads messages from its input and writes its replies.

    Its input closes when this process ends, whatever the cause. One thread at a time asks it; any thread may end it.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # nosec B603  # no argument comes from a request
            [sys.executable, "-m", module, *arguments],
            # The environment of this process holds API keys, so the worker gets none of it.
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Otherwise Ctrl+C in the terminal would end the worker before the stack shuts down. Its session stays this
            # process's: Linux shares cores between sessions first, and heeds priorities within each of them alone.
            process_group=0,
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, message: object, reply: type[Reply]) -> Reply:
        """Return the reply to a message. Raises WorkerEnded. The process is ended if anything is raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            write_frame(self._process.stdin, message)  # type: ignore[arg-type]  # typed as IO
            return msgspec.msgpack.decode(read_frame(self._process.stdout), type=reply)  # type: ignore[arg-type]
        except BaseException as error:
            # Another thread that has ended it has closed the pipes.
            gone = isinstance(error, (EOFError, OSError)) or self._process.stdin.closed
            self.end()
            if gone:
                raise WorkerEnded from error
            raise

    def end(self) -> None:
        """Kill the process, also while it works."""
        self._process.kill()
        # What it has not read cannot be flushed.
        with suppress(OSError), self._process:
            pass


def give_way() -> None:
    """Let other processes compute first: the parts answer at the same time."""
    os.nice(_NICENESS)


def confine(memory_bytes: int) -> None:
    """Limit the address space of this process, and let it write no file and no core.

    At the limit it gets a MemoryError, or whatever native code makes of a failed allocation.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_processor_time(seconds: int) -> None:
    """Let this process compute for so many seconds more, on all its threads together. Then SIGXCPU ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
