"""A process that does work for this one, and answers one message after another."""

import os
import subprocess
import sys
from contextlib import suppress
from typing import TypeVar

import msgspec

from subprocesses.frames import read_frame, write_frame

Reply = TypeVar("Reply")


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
