"""Extraction by rules in a worker process, which reads one group of chunks after another from standard input."""

import sys
import threading
from collections.abc import Sequence

import msgspec
from threadpoolctl import threadpool_limits

from protocol.errors import Unavailable
from retriever.graph.extractors.base import ExtractorEnded, GraphSource, Statement
from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.rules import RulesExtractor
from retriever.thread_priorities import lower_priority
from subprocesses.frames import read_frame, write_frame
from subprocesses.worker_process import WorkerEnded, WorkerProcess


class RulesProcess:
    """Has a worker process extract by rules, because spaCy holds the interpreter's lock while searches wait for it.

    The first chunks start the worker. If it ends, the next ones start another. One thread at a time extracts.
    """

    def __init__(self, fingerprint: str) -> None:
        """``fingerprint`` is that of the extractor in the worker."""
        self.fingerprint = fingerprint
        self._worker: WorkerProcess | None = None
        self._closed = False
        self._lock = threading.Lock()

    def extract(self, sources: Sequence[GraphSource]) -> list[list[Statement]]:
        """Return the statements of each chunk. Raises ExtractorEnded, or Unavailable if this is closed."""
        try:
            return self._running().ask(list(sources), list[list[Statement]])
        except WorkerEnded as error:
            self._end()
            if self._closed:
                raise Unavailable("the graph is closed") from error
            raise ExtractorEnded("the process that reads chunks for the graph has ended") from error

    def close(self) -> None:
        """End the worker, also while it reads."""
        self._closed = True
        self._end()

    def _running(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise Unavailable("the graph is closed")
            if self._worker is None:
                self._worker = WorkerProcess("retriever.graph.extractors.rules_process")
            return self._worker

    def _end(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()


def main() -> None:
    """Read chunks until standard input closes."""
    lower_priority()
    # The embedder computes at the same time, on the other cores.
    threadpool_limits(limits=1)
    extractor = RulesExtractor(Phrases())
    while True:
        try:
            sources = msgspec.msgpack.decode(read_frame(sys.stdin.buffer), type=list[GraphSource])
        except EOFError:
            return
        write_frame(sys.stdout.buffer, extractor.extract(sources))


if __name__ == "__main__":
    main()
