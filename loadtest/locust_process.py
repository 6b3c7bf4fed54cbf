"""Load tests started by a program: Locust in a process of its own, as gevent changes the one it runs in."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.errors import LoadTestError
from loadtest.reporting.results import Results

END_ARRIVALS = signal.SIGUSR1
"""What a load test takes for the end of its schedule: nothing more is sent, and what is open comes to its end."""

_ROOT = Path(__file__).parents[1]


class RunFailed(LoadTestError):
    """A load test that has no report, as it never began for one."""


class LocustProcess:
    """A headless run against ``url`` that writes its folder into ``reports``, which must have no other.

    ``options`` are command line options of the load test.
    """

    def __init__(self, url: str, reports: Path, options: Sequence[str]) -> None:
        self._reports = reports
        command = [sys.executable, "-m", "loadtest", "--headless", "--only-summary"]
        command += ["--host", url, "--report-dir", str(reports.absolute()), *options]
        self._process = subprocess.Popen(command, cwd=_ROOT)  # noqa: S603 - our own words

    @property
    def folder(self) -> Path | None:
        """The run's folder, once its traffic has begun."""
        return next(self._reports.glob("*/"), None)

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, at the latest after so many seconds."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end_arrivals(self) -> None:
        """Have it send nothing more, once it has begun its traffic; it ends when all that is open has."""
        self._process.send_signal(END_ARRIVALS)

    def close(self) -> None:
        """End it now, without a report, if it still runs."""
        self._process.kill()
        self._process.wait()

    def results(self) -> Results:
        """Wait for the end; what came of it. Raises RunFailed."""
        self._process.wait()
        file = next(self._reports.glob("*/results.json"), None)
        if file is None:
            raise RunFailed("the load test has no report; what it says above is why")
        return msgspec.json.decode(file.read_bytes(), type=Results)
