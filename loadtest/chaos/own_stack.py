"""A stack of one's own, started with the command line as its users do, and its processes."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from loadtest.chaos.own_redis import free_port
from loadtest.errors import LoadTestError
from loadtest.stack_api import authorization

UP = (sys.executable, "-m", "services.cli", "up")
_ROOT = Path(__file__).parents[2]
_START_S, _STOP_S = 300.0, 90.0
_POLL_S = 0.2


class OwnStack:
    """Runs on a data folder of its own and a free port. ``stop`` must be called, whatever ``start`` comes to.

    ``environment`` has its configuration, beside what stands in this process's own. ``family_s`` is how long processes
    below its own may outlive it.
    """

    def __init__(
        self,
        data: Path,
        log: Path,
        environment: Mapping[str, str],
        command: Sequence[str] = UP,
        family_s: float = 15.0,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        self._command = command
        self._family_s = family_s
        own = {"RAGTREE_DATA_DIR": str(data), "RAGTREE_SERVER__PORT": str(port)}
        self._environment = {**os.environ, **environment, **own}
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()

    def start(self) -> None:
        """Return when it answers queries. Raises LoadTestError."""
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                self._command,
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for whoever started it, and it is stopped then.
                start_new_session=True,
            )
        give_up = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise LoadTestError(f"the stack does not start; the end of {self._log}:\n{self._log_tail()}")
            time.sleep(_POLL_S)

    def processes(self) -> list[psutil.Process]:
        """All below its own, as they run now; those that were seen once are looked for when it has stopped."""
        if self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            now = psutil.Process(self._process.pid).children(recursive=True)
            self._seen.update(now)
            return now
        return []

    def stop(self) -> list[str]:
        """Stop it; what is left of it is killed, and named."""
        if self._process is None:
            return []
        self.processes()
        self._process.terminate()
        left = []
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            left.append(f"the stack itself (process {self._process.pid}), which did not stop within {_STOP_S:g} s")
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(self._seen, timeout=self._family_s)
        for process in alive:
            left.append(f"{called(process)} (process {process.pid})")
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return left

    def _is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", headers=authorization(), timeout=10).status_code == httpx.codes.OK
        return False

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def called(process: psutil.Process) -> str:
    """A process's title, or its command line; empty where it is gone."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return " ".join(process.cmdline()) or process.name()
    return ""
