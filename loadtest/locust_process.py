"""Run a load test from a program. Locust runs in its own process, because gevent patches the one it runs in."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.errors import LoadTestError
from loadtest.reporting.results import Results

END_ARRIVALS = signal.SIGUSR1
"""This signal ends the schedule early: no more requests are sent, and open ones finish."""

_ROOT = Path(__file__).parents[1]


class RunFailed(LoadTestError):
    """The load test has no report because it never started."""


class LocustProcess:
    """A headless run against ``url`` that writes its folder into ``reports``, which must be empty.

    ``options`` are command line options of the load test.
    """

    def __init__(self, url: str, reports: Path, options: Sequence[str]) -> None:
        self._reports = reports
        command = [sys.executable, "-m", "loadtest", "--headless", "--only-summary"]
        command += ["--host", url, "--report-dir", str(reports.absolute()), *options]
        self._process = subprocess.Popen(command, cwd=_ROOT)  # noqa: S603 - our own command

    @property
    def folder(self) -> Path | None:
        """The run's folder, or None before the traffic starts."""
        return next(self._reports.glob("*/"), None)

    def ended(self, within_s: float = 0.0) -> bool:
        """Wait up to ``within_s`` seconds and return whether the run has ended."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end_arrivals(self) -> None:
        """Send no more requests. Call it after the traffic has started. The run ends when all open requests have."""
        self._process.send_signal(END_ARRIVALS)

    def close(self) -> None:
        """Kill the run if it is still going, without a report."""
        self._process.kill()
        self._process.wait()

    def results(self) -> Results:
        """Wait for the end and return the results. Raises RunFailed."""
        self._process.wait()
        file = next(self._reports.glob("*/results.json"), None)
        if file is None:
            raise RunFailed("the load test has no report; see its output above")
        return msgspec.json.decode(file.read_bytes(), type=Results)
