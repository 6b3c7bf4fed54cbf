"""Loaders that run in worker processes with limited processor time and memory.

A PDF of a few kilobytes can take pypdf minutes, nested HTML takes time quadratic in its size, and a spreadsheet can
repeat a long text in every cell. In the retriever's process that would delay every search. Here the kernel ends the
worker, and the document is refused.
"""

from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, Loader
from retriever.loaders.registry import LOADERS
from retriever.loaders.sandbox_worker import REFUSALS, LoadReply, LoadRequest
from retriever.loaders.text import SOURCE_CODE
from retriever.settings import LoaderSettings
from subprocesses.worker_process import WorkerEnded, WorkerProcess

UNCONFINED = ("text/plain", "text/markdown", SOURCE_CODE)
"""The media types that need no sandbox: their loaders take time and memory linear in a document's size."""

SANDBOXED = tuple(kind for kind in LOADERS if kind not in UNCONFINED)


class SandboxedLoaders:
    """Provides the loaders of ``SANDBOXED`` as ``loaders``, by media type. Thread-safe.

    The first document starts a worker. A worker is reused until a document exceeds its limits.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self.loaders: dict[str, Loader] = {kind: partial(self._load, kind) for kind in SANDBOXED}

    def close(self) -> None:
        """End the idle workers."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().end()

    def _load(self, media_type: str, content: bytes) -> LoadedText:
        worker = self._worker()
        try:
            reply = worker.ask(LoadRequest(media_type, content, self._settings.cpu_s), LoadReply)
        except WorkerEnded as error:
            raise BrokenDocument(
                f"reading the document takes more than {self._settings.cpu_s} s or too much memory"
            ) from error
        self._idle.put(worker)
        if reply.loaded is None:
            raise REFUSALS[reply.refusal](reply.message)
        return reply.loaded

    def _worker(self) -> WorkerProcess:
        with suppress(Empty):
            return self._idle.get_nowait()
        memory = self._settings.memory_mib * 1024 * 1024
        return WorkerProcess("retriever.loaders.sandbox_worker", str(memory))
