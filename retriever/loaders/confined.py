"""Loaders that run in a process of their own, with bounded processor time and memory.

A PDF of a few kilobytes can take pypdf minutes, and nested HTML takes a time quadratic in its size. In the retriever's
process that would hold up every search; here it ends the process, and the document is refused.
"""

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import msgspec

from protocol.errors import BrokenDocument
from retriever.loaders.base import LoadedText, Loader
from retriever.loaders.child import REFUSALS, LoadReply, LoadRequest, read_frame, write_frame
from retriever.settings import LoaderSettings

CONFINED = ("text/html", "application/xhtml+xml", "application/pdf")
"""What is read so; the other loaders take a time linear in a document's size."""

Child = subprocess.Popen[bytes]


class ConfinedLoaders:
    """The loaders of ``CONFINED`` as ``loaders``, by media type. Any threads may call them side by side.

    A child is started for the first document, and serves until one is too much for it.
    """

    def __init__(self, settings: LoaderSettings) -> None:
        self._settings = settings
        self._idle: SimpleQueue[Child] = SimpleQueue()
        self.loaders: dict[str, Loader] = {kind: partial(self._load, kind) for kind in CONFINED}

    def close(self) -> None:
        """End the children that read nothing at the moment."""
        with suppress(Empty):
            while True:
                _end(self._idle.get_nowait())

    def _load(self, media_type: str, content: bytes) -> LoadedText:
        child = self._child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            write_frame(child.stdin, LoadRequest(media_type, content, self._settings.cpu_s))  # type: ignore[arg-type]
            reply = msgspec.msgpack.decode(read_frame(child.stdout), type=LoadReply)  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            _end(child)
            raise BrokenDocument(f"it takes more than {self._settings.cpu_s} s, or too much memory, to read") from error
        except BaseException:
            _end(child)
            raise
        self._idle.put(child)
        if reply.loaded is None:
            raise REFUSALS[reply.refusal](reply.message)
        return reply.loaded

    def _child(self) -> Child:
        with suppress(Empty):
            return self._idle.get_nowait()
        memory = self._settings.memory_mib * 1024 * 1024
        return subprocess.Popen(  # noqa: S603  # nosec B603  # no argument comes from a request
            [sys.executable, "-m", "retriever.loaders.child", str(memory)],
            # Nothing of this process's environment: it holds keys.
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Or an interrupt on the terminal would end it before the stack has.
            start_new_session=True,
        )


def _end(child: Child) -> None:
    child.kill()
    with child:
        pass
