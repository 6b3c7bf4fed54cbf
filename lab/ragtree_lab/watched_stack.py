"""A stack that is started with its command line, and its processes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from loadtest.errors import LoadTestError
from loadtest.stack_api import authorization

UP = (sys.executable, "-m", "services.cli", "up")
_ROOT = Path(__file__).parents[2]
_START_S, _STOP_S = 300.0, 90.0
_POLL_S = 0.2


class WatchedStack:
    """Runs a stack with its own data folder and a free port. Always call ``stop``, even if ``start`` fails.

    ``environment`` is its configuration, in addition to this process's own. ``children_timeout_s`` is how long its
    child processes may outlive it.
    """

    def __init__(
        self,
        data: Path,
        log: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = UP,
        children_timeout_s: float = 15.0,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        self._command = command
        self._children_timeout_s = children_timeout_s
        own = {"RAGTREE_DATA_DIR": str(data), "RAGTREE_SERVER__PORT": str(port)}
        self._environment = {**os.environ, **environment, **own}
        self._process: subprocess.Popen[bytes] | None = None
        self._children: set[psutil.Process] = set()

    def start(self) -> None:
        """Start the stack. Returns when it is ready. Raises LoadTestError."""
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603  # nosec B603  # our own command
                self._command,
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes only to this process, which then stops the stack. Not a session of its own: Linux may
                # divide processors among sessions (autogroup), whatever the priorities of the stack's threads.
                process_group=0,
            )
        give_up = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise LoadTestError(f"the stack does not start; the end of {self._log}:\n{self._log_tail()}")
            time.sleep(_POLL_S)

    def processes(self) -> list[psutil.Process]:
        """Return all current descendants. ``stop`` checks that every one seen here has ended."""
        if self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            now = psutil.Process(self._process.pid).children(recursive=True)
            self._children.update(now)
            return now
        return []

    def stop(self) -> list[str]:
        """Stop the stack. Kill the processes that are left and return their names."""
        if self._process is None:
            return []
        self.processes()
        self._process.terminate()
        left = []
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            left.append(f"the stack (process {self._process.pid}), which did not stop within {_STOP_S:g} s")
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(self._children, timeout=self._children_timeout_s)
        for process in alive:
            left.append(f"{process_title(process)} (process {process.pid})")
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return left

    def _is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", headers=authorization(), timeout=10).status_code == httpx.codes.OK
        return False

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def process_title(process: psutil.Process) -> str:
    """Return a process's command line or name, or an empty string if it is gone."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline()) or process.name()
    return ""


def free_port() -> int:
    """Return a port that is currently unused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
