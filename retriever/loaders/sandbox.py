"""Loaders that run in worker processes with limited processor time and memory.

A PDF of a few kilobytes can take pypdf minutes, nested HTML takes time quadratic in its size, and a spreadsheet can
repeat a long text in every cell. In the retriever's
process that would delay every search. Here the kernel ends the worker, and the document is refused.
"""

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import msgspec

from protocol.errors import BrokenDocument
from retriever.frames import read_frame, write_frame
from retriever.loaders.base import LoadedText, Loader
from retriever.loaders.registry import LOADERS
from retriever.loaders.sandbox_worker import REFUSALS, LoadReply, LoadRequest
from retriever.loaders.source_code import SOURCE_CODE
from retriever.settings import LoaderSettings

UNCONFINED = ("text/plain", "text/markdown", SOURCE_CODE)
"""The media types that need no sandbox: their loaders take time and memory linear in a document's size."""

SANDBOXED = tuple(kind for kind in LOADERS if kind not in UNCONFINED)

Worker = subprocess.Popen[bytes]


class SandboxedLoaders:
    """Provides the loaders of ``SANDBOXED`` as ``loaders``, by media type. Thread-safe.

    The first document starts a worker. A worker is reused until a document exceeds its limits.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self.loaders: dict[str, Loader] = {kind: partial(self._load, kind) for kind in SANDBOXED}

    def close(self) -> None:
        """End the idle workers."""
        with suppress(Empty):
            while True:
                _end(self._idle.get_nowait())

    def _load(self, media_type: str, content: bytes) -> LoadedText:
        worker = self._worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            write_frame(worker.stdin, LoadRequest(media_type, content, self._settings.cpu_s))  # type: ignore[arg-type]
            reply = msgspec.msgpack.decode(read_frame(worker.stdout), type=LoadReply)  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            _end(worker)
            raise BrokenDocument(
                f"reading the document takes more than {self._settings.cpu_s} s or too much memory"
            ) from error
        except BaseException:
            _end(worker)
            raise
        self._idle.put(worker)
        if reply.loaded is None:
            raise REFUSALS[reply.refusal](reply.message)
        return reply.loaded

    def _worker(self) -> Worker:
        with suppress(Empty):
            return self._idle.get_nowait()
        memory = self._settings.memory_mib * 1024 * 1024
        return subprocess.Popen(  # noqa: S603  # nosec B603  # no argument comes from a request
            [sys.executable, "-m", "retriever.loaders.sandbox_worker", str(memory)],
            # The environment of this process holds API keys, so the worker gets none of it.
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Otherwise Ctrl+C in the terminal would end the worker before the stack shuts down.
            start_new_session=True,
        )


def _end(worker: Worker) -> None:
    worker.kill()
    with worker:
        pass
