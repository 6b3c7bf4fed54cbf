"""A benchmark in a process of its own."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ragtree_lab.suite.log_tail import last_lines

_POLL_S = 0.5
_PATIENCE_S = 120.0
"""How long a benchmark that is ended may take to close its engines and its stack."""

_REMAINS_S = 5.0
"""How long what a benchmark has started may outlive it."""


class Left(NamedTuple):
    """What a process left: its exit status (negative: the signal that ended it), and the object that it printed."""

    status: int
    result: dict[str, Any] | None


class Child:
    """Runs a command in a session of its own, so that Ctrl-C does not reach it. Its log gets all but its result.

    Always call ``finish``. Raises OSError if the log cannot be written or the command not be started.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when its content is read
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # nosec B603  # our own command line
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=errors, start_new_session=True
            )

    def wait(self, says: Callable[[str], None]) -> None:
        """Wait until the process ends; ``says`` is called with the last line of its log about twice a second.

        The line is empty as long as the log is.
        """
        while self._process.poll() is None:
            says("".join(last_lines(self._log, 1)))
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)

    def finish(self) -> Left:
        """End the process if it still runs, and all that it has started. Return what it left."""
        try:
            self._process.terminate()
            status = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        finally:
            # An engine that outlives its benchmark would slow the next one down. A second Ctrl-C ends up here, too.
            self._clear()
        return Left(status, self._result())

    def _clear(self) -> None:
        """Kill the process and its group, unless they end by themselves: what has ended gets a moment for the rest."""
        if self._process.returncode is None or not self._gone():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._gone()

    def _gone(self) -> bool:
        """Return whether nothing is left of the group, after a moment."""
        until = time.monotonic() + _REMAINS_S
        while time.monotonic() < until:
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        return False

    def _result(self) -> dict[str, Any] | None:
        """Return the last object that was printed. All other output goes to the log."""
        result: dict[str, Any] | None = None
        self._output.seek(0)
        with self._output, self._log.open("ab") as log:
            for line in self._output:
                try:
                    result = msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.DecodeError:
                    log.write(line)
        return result
