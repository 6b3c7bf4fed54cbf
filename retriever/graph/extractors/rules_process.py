"""Extraction by rules in a process of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from protocol.errors import Unavailable
from retriever.frames import read_frame, write_frame
from retriever.graph.extractors.base import GraphSource, Statement

Worker = subprocess.Popen[bytes]


class RulesProcess:
    """Has a worker process extract by rules, because spaCy holds the interpreter's lock while searches wait for it.

    The first chunks start the worker. If it ends, the next ones start another. One thread at a time extracts.
    """

    def __init__(self, fingerprint: str) -> None:
        """``fingerprint`` is that of the extractor in the worker."""
        self.fingerprint = fingerprint
        self._worker: Worker | None = None
        self._closed = False
        self._lock = threading.Lock()

    def extract(self, sources: Sequence[GraphSource]) -> list[list[Statement]]:
        """Return the statements of each chunk. Raises Unavailable if the worker has ended, or this is closed."""
        worker = self._running()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            write_frame(worker.stdin, list(sources))  # type: ignore[arg-type]
            return msgspec.msgpack.decode(read_frame(worker.stdout), type=list[list[Statement]])  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            self._end()
            raise Unavailable("the process that reads chunks for the graph has ended") from error
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """End the worker, also while it reads."""
        self._closed = True
        self._end()

    def _running(self) -> Worker:
        with self._lock:
            if self._closed:
                raise Unavailable("the graph is closed")
            if self._worker is None:
                self._worker = subprocess.Popen(  # nosec B603  # no argument comes from a request
                    [sys.executable, "-m", "retriever.graph.extractors.rules_worker"],
                    # The environment of this process holds API keys, so the worker gets none of it.
                    env={"PYTHONPATH": os.pathsep.join(sys.path)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # Otherwise Ctrl+C in the terminal would end the worker before the stack shuts down.
                    start_new_session=True,
                )
            return self._worker

    def _end(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            # What it has not taken cannot be flushed.
            with suppress(OSError), worker:
                pass
