"""The thread in which the ingester runs."""

import threading
from collections.abc import Callable

import structlog

from protocol.errors import RagtreeError
from retriever.ingestion.ingester import Ingester
from retriever.settings import IngestSettings

_log = structlog.get_logger(__name__)


class IngestThread:
    """Steps the ingester while there is something to do, and after a failure again, after ever longer pauses.

    ``prepare`` is called once, in the thread, before anything else. ``wake`` is set by whoever has something to do for
    it.
    """

    def __init__(
        self, ingester: Ingester, settings: IngestSettings, prepare: Callable[[], None], wake: threading.Event
    ) -> None:
        self._ingester = ingester
        self._settings = settings
        self._prepare = prepare
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retriever-ingest", daemon=True)

    def start(self) -> None:
        """Begin; the queue of an earlier process is worked off first."""
        self._thread.start()

    def notify(self) -> None:
        """Say that there is something to do."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the group in hand; the rest stays queued."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._prepare()
        pause = self._settings.retry_first_s
        while not self._stop.is_set():
            self._wake.clear()
            try:
                while not self._stop.is_set() and self._ingester.step():
                    pause = self._settings.retry_first_s
            except RagtreeError as error:
                _log.warning("ingestion waits", reason=error.message, seconds=pause)
            except Exception as error:
                _log.error("ingestion failed, and is tried again", seconds=pause, exc_info=error)
            else:
                self._wake.wait()
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, self._settings.retry_max_s)
