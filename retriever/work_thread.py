"""A thread that works while there is something to do."""

import threading
from collections.abc import Callable

import structlog

from protocol.errors import RagtreeError
from retriever.settings import Pace

_log = structlog.get_logger(__name__)


class WorkThread:
    """Calls ``do_next`` until it returns False, and again when it is woken. Retries failures after pauses that double.

    ``work`` names what it does in the log. ``warm_up`` runs once, in the thread, before anything else. Other components
    set ``wake`` when there is work.
    """

    def __init__(
        self,
        work: str,
        do_next: Callable[[], bool],
        pace: Pace,
        warm_up: Callable[[], None],
        wake: threading.Event,
    ) -> None:
        self._work = work
        self._do_next = do_next
        self._pace = pace
        self._warm_up = warm_up
        self._work_available = wake
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._calls = 0
        self._last_idle_call = 0
        self._thread = threading.Thread(target=self._run, name=f"retriever-{work}", daemon=True)

    def start(self) -> None:
        """Start the thread. It first does what an earlier process left undone."""
        self._thread.start()

    def wake(self) -> None:
        """Signal that there is work."""
        self._work_available.set()

    def wait(self) -> None:
        """Return when all work that is there at this moment is done, or the thread is closed."""
        with self._progress:
            # A call that is running may have looked for work too early.
            awaited = self._calls + 1
            self._work_available.set()
            self._progress.wait_for(lambda: self._last_idle_call >= awaited or self._stop.is_set())

    def stop(self) -> None:
        """Have the thread end after the current call, whether that succeeds or not. The rest stays undone."""
        self._stop.set()
        self._work_available.set()
        with self._progress:
            self._progress.notify_all()

    def close(self) -> None:
        """Stop, and return when the current call has ended."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._warm_up()
        pause = self._pace.retry_first_s
        while True:
            self._work_available.clear()
            # After clearing: closing may have set the event just before, and nobody would set it again.
            if self._stop.is_set():
                return
            try:
                while not self._stop.is_set() and self._next():
                    pause = self._pace.retry_first_s
            except Exception as error:
                if self._stop.is_set():
                    # What the call needs may be closed already.
                    return
                self._log_failure(error, pause)
            else:
                self._work_available.wait()
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, self._pace.retry_max_s)

    def _log_failure(self, error: Exception, pause: float) -> None:
        if isinstance(error, RagtreeError):
            _log.warning(f"{self._work} paused", reason=error.message, seconds=pause)
        else:
            _log.error(f"{self._work} failed, retrying", seconds=pause, exc_info=error)

    def _next(self) -> bool:
        with self._progress:
            self._calls += 1
            call = self._calls
        if self._do_next():
            return True
        with self._progress:
            self._last_idle_call = call
            self._progress.notify_all()
        return False
