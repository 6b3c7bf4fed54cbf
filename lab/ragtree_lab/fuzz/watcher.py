"""Watches a stack while it is attacked: its processes, their memory, and whether it answers at once."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from ragtree_lab.watched_stack import process_title

WATCHED = ("ServeReplica:", "ServeController", "ProxyActor", "raylet", "gcs_server", "EngineCore")
"""Substrings of the titles of processes that must not end. Loaders' processes may: they are there to be ended."""

_POLL_S = 0.2
_SCAN_S = 2.0
_STALL_S = 3.0
_PROBE_TIMEOUT_S = 20.0
_MIB = 2**20
_MOST_GROWTH = 512 * _MIB
_ENGINES_GROWTH = 2048 * _MIB
"""An engine touches its KV cache little by little."""


class Memory(NamedTuple):
    """The resident memory of a process in bytes: at the start, at most, and last."""

    first: int
    most: int
    last: int


class Watcher:
    """Watches the stack at ``url`` from a thread. ``root`` is its process, None if it is on another machine.

    ``harmed(what)`` is called from that thread for everything that must not happen. Always call ``close``.
    """

    def __init__(self, url: str, root: psutil.Process | None, harmed: Callable[[str], None]) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        self._root = root
        self._harmed = harmed
        self._processes: dict[int, tuple[psutil.Process, str]] = {}
        self._grown_from: dict[int, int] = {}
        self._memory: dict[tuple[str, int], Memory] = {}
        self._scanned = 0.0
        self._stalls: list[float] = []
        self._lateness: list[float] = []
        self._closed = threading.Event()
        self._ready = threading.Event()
        self.deaths: list[float] = []
        """When a process was found to have ended, on the monotonic clock."""
        self._adopt()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_ready(self) -> bool:
        """Whether the stack was ready when it was last asked."""
        return self._ready.is_set()

    async def until_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the stack is ready, at most so long. Must be called from an event loop."""
        await asyncio.to_thread(self._ready.wait, timeout_s)

    @property
    def memory(self) -> dict[str, Memory]:
        """The memory of each process, by name and process id."""
        return {f"{name} ({pid})": memory for (name, pid), memory in self._memory.items()}

    @property
    def longest_stall_s(self) -> float:
        """The longest time that the gateway took to say that it is alive."""
        return max(self._stalls, default=0.0)

    @property
    def longest_lateness_s(self) -> float:
        """How long, at most, a thread that slept waited for a processor. Stalls contain such times, too."""
        return max(self._lateness, default=0.0)

    def died_since(self, moment: float) -> bool:
        """Whether a process was found dead at ``moment`` or later."""
        return any(at >= moment for at in self.deaths)

    def check_processes(self) -> None:
        """Say which processes have ended since the last check, and look for their successors now and then."""
        for pid, (process, name) in list(self._processes.items()):
            if not _is_alive(process):
                del self._processes[pid]
                self.deaths.append(time.monotonic())
                self._ready.clear()
                self._harmed(f"a process ended: {name}")
        if time.monotonic() - self._scanned >= _SCAN_S:
            self._adopt()

    def _run(self) -> None:
        while True:
            due = time.monotonic() + _POLL_S
            if self._closed.wait(_POLL_S):
                return
            self._lateness.append(time.monotonic() - due)
            self.check_processes()
            self._probe()

    def _adopt(self) -> None:
        """Watch the processes that are new, and read the memory of all."""
        self._scanned = time.monotonic()
        if self._root is None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                title = process_title(process)
                if process.pid not in self._processes and (
                    process == self._root or any(each in title for each in WATCHED)
                ):
                    self._processes[process.pid] = (process, _name(title))
        for process, name in self._processes.values():
            with suppress(psutil.NoSuchProcess):
                self._note(process.pid, name, process.memory_info().rss)

    def _note(self, pid: int, name: str, rss: int) -> None:
        known = self._memory.get((name, pid), Memory(rss, rss, rss))
        self._memory[name, pid] = Memory(known.first, max(known.most, rss), rss)
        if not self._ready.is_set():
            # It still loads its model, its indexes or its store.
            self._grown_from[pid] = rss
            return
        most = _ENGINES_GROWTH if "EngineCore" in name else _MOST_GROWTH
        if rss - self._grown_from.setdefault(pid, rss) > most:
            self._grown_from[pid] = rss
            self._harmed(f"the memory of {name} grew by over {most // _MIB} MiB")

    def _probe(self) -> None:
        begun = time.monotonic()
        alive = self._status("/healthz")
        took = time.monotonic() - begun
        self._stalls.append(took)
        if took > _STALL_S or alive is None:
            self._harmed(f"/healthz took over {_STALL_S:g} s" if alive else "/healthz did not answer")
        ready = self._status("/readyz") == 200
        if self._ready.is_set() and not ready and not self.died_since(begun - 60):
            self._harmed("/readyz says that the stack is not ready")
        self._ready.set() if ready else self._ready.clear()

    def _status(self, path: str) -> int | None:
        connection = HTTPConnection(self._host, self._port, timeout=_PROBE_TIMEOUT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _name(title: str) -> str:
    """The part of a title that stays the same: Ray appends the current method, and replicas have random ids."""
    known = next((each for each in WATCHED if each in title), None)
    if known is None:
        return "stack"
    rest = title.partition(known)[2].partition(" ")[0]
    return f"{known}{rest.partition('.')[0].partition('::')[0].partition('#')[0]}"[:60]
