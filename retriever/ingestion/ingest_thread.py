"""The thread that runs the ingester."""

import threading
from collections.abc import Callable

import structlog

from protocol.errors import RagtreeError
from retriever.ingestion.ingester import Ingester
from retriever.settings import IngestSettings

_log = structlog.get_logger(__name__)


class IngestThread:
    """Runs the ingester while there is work. Retries failures after pauses that double up to a maximum.

    ``warm_up`` runs once, in the thread, before anything else. Other components set ``wake`` when there is work.
    """

    def __init__(
        self, ingester: Ingester, settings: IngestSettings, warm_up: Callable[[], None], wake: threading.Event
    ) -> None:
        self._ingester = ingester
        self._settings = settings
        self._warm_up = warm_up
        self._work_available = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retriever-ingest", daemon=True)

    def start(self) -> None:
        """Start the thread. It first ingests what an earlier process left queued."""
        self._thread.start()

    def wake(self) -> None:
        """Signal that there is work."""
        self._work_available.set()

    def close(self) -> None:
        """Stop after the current group. The rest stays queued."""
        self._stop.set()
        self._work_available.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._warm_up()
        pause = self._settings.retry_first_s
        while not self._stop.is_set():
            self._work_available.clear()
            try:
                while not self._stop.is_set() and self._ingester.ingest_next_group():
                    pause = self._settings.retry_first_s
            except RagtreeError as error:
                _log.warning("ingestion paused", reason=error.message, seconds=pause)
            except Exception as error:
                _log.error("ingestion failed, retrying", seconds=pause, exc_info=error)
            else:
                self._work_available.wait()
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, self._settings.retry_max_s)
