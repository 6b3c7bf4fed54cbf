"""A real Redis server for tests: on its own port, without a disk, ended by its process id."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import redis

_BINARY = shutil.which("redis-server") or "/usr/bin/redis-server"


class RedisServer:
    """One server. Every start is empty and on the same port."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="redis-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RedisServer":
        command = [_BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder]
        with (Path(self._folder) / "log").open("ab") as output:
            self._process = subprocess.Popen([*command, *self._options], stdout=output, stderr=output)
        give_up = time.monotonic() + 10
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return self
                except redis.RedisError:
                    assert self._process.poll() is None, (Path(self._folder) / "log").read_text()
                    assert time.monotonic() < give_up, "the server does not answer"
                    time.sleep(0.01)

    def client(self) -> redis.Redis:
        """A blocking client for inspection. Its calls wait for a hanging server."""
        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop the server from answering. It keeps its connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def fill(self) -> None:
        """Make the server refuse writes, as if its memory were full."""
        with self.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)

    def empty(self) -> None:
        with self.client() as client:
            client.config_set("maxmemory", 0)
            client.flushall()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
