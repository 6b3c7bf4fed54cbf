"""A Redis server that can be killed and paused."""

import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.errors import LoadTestError
from ragtree_lab.watched_stack import free_port

_BINARY = shutil.which("redis-server") or "/usr/bin/redis-server"
_START_S = 10.0
_POLL_S = 0.02


class RedisProcess:
    """A server on its own port without persistence, so it restarts empty. Always call ``close``.

    Raises LoadTestError if it cannot be started.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._resume: threading.Timer | None = None
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def is_away(self) -> bool:
        """Whether it is killed or paused at the moment."""
        return self._resume is not None and self._resume.is_alive()

    def kill(self, away_s: float) -> None:
        """Kill the server. A new one starts after ``away_s`` seconds."""
        self._process.kill()
        self._process.wait()
        self._resume_after(away_s, self._restart)

    def hang(self, away_s: float) -> None:
        """Pause the server for ``away_s`` seconds. It keeps its connections but does not answer."""
        self._process.send_signal(signal.SIGSTOP)
        self._resume_after(away_s, lambda: self._process.send_signal(signal.SIGCONT))

    def close(self) -> None:
        """End the server for good."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume.join()
        self._process.kill()
        self._process.wait()

    def _resume_after(self, seconds: float, resume: Callable[[], None]) -> None:
        self._resume = threading.Timer(seconds, resume)
        self._resume.start()

    def _restart(self) -> None:
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [_BINARY, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        try:
            with (self._folder / "redis.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603  # nosec B603  # our own command
        except FileNotFoundError as error:
            raise LoadTestError("redis-server is not installed. Debian's package is redis-server.") from error
        give_up = time.monotonic() + _START_S
        while not self._listens():
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                process.wait()
                raise LoadTestError(f"Redis does not start; see {self._folder / 'redis.log'}")
            time.sleep(_POLL_S)
        return process

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
