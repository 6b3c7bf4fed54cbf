"""A Redis of one's own, which may be killed and held up."""

import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.errors import LoadTestError

_BINARY = shutil.which("redis-server") or "/usr/bin/redis-server"
_START_S = 10.0
_POLL_S = 0.02


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


class OwnRedis:
    """A server on a port of its own that keeps nothing on disk, so it comes back empty. ``close`` must be called.

    Raises LoadTestError where there is none to be had.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._back: threading.Timer | None = None
        self._process = self._started()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    @property
    def is_away(self) -> bool:
        """Whether it was killed or held up, and is not back yet."""
        return self._back is not None and self._back.is_alive()

    def kill(self, away_s: float) -> None:
        """End it as a crash would; after so many seconds another comes up in its place."""
        self._process.kill()
        self._process.wait()
        self._return_after(away_s, self._come_up)

    def hang(self, away_s: float) -> None:
        """Have it keep its connections and answer nothing for so many seconds."""
        self._process.send_signal(signal.SIGSTOP)
        self._return_after(away_s, lambda: self._process.send_signal(signal.SIGCONT))

    def close(self) -> None:
        """End it for good."""
        if self._back is not None:
            self._back.cancel()
            self._back.join()
        self._process.kill()
        self._process.wait()

    def _return_after(self, seconds: float, back: Callable[[], None]) -> None:
        self._back = threading.Timer(seconds, back)
        self._back.start()

    def _come_up(self) -> None:
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        command = [_BINARY, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
        try:
            with (self._folder / "redis.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own words
        except FileNotFoundError as error:
            raise LoadTestError("there is no redis-server on this machine; Debian has one") from error
        give_up = time.monotonic() + _START_S
        while not self._listens():
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                process.wait()
                raise LoadTestError(f"Redis does not start: {self._folder / 'redis.log'} says why")
            time.sleep(_POLL_S)
        return process

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True
