"""What a running stack leaves in its data folder, so that other commands find it.

A lock is held for as long as the stack's process lives, and the kernel lets go of it however that ends: a note that
outlived its stack is never believed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from protocol.errors import Conflict

_FAMILY_S = 10.0
"""How long Ray's processes may outlive the stack's own before they are killed."""


class RunningStack(msgspec.Struct, frozen=True):
    """A stack that runs: its process, where its gateway listens, and the address of its Ray."""

    pid: int
    url: str
    ray_address: str


class RunState:
    """The notes of the one stack that may run on a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "run"
        self._note = self._folder / "stack.json"
        self._lock = FileLock(self._folder / "stack.lock")

    @property
    def log_file(self) -> Path:
        """Where a detached stack writes its log."""
        return self._folder / "stack.log"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Own the data folder. Raises Conflict when another stack does."""
        # The log tells names of documents.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # Whoever looks whether a stack runs holds the lock for an instant.
            self._lock.acquire(timeout=1)
        except Timeout:
            running = self.running()
            where = f" at {running.url} (process {running.pid})" if running else ""
            raise Conflict(f"a stack already runs on {self._folder.parent}{where}; `ragtree down` stops it") from None
        try:
            yield
        finally:
            self._note.unlink(missing_ok=True)
            self._lock.release()

    def publish(self, url: str, ray_address: str) -> None:
        """Note where the stack of this process listens; needs ``claimed``."""
        scratch = self._note.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(RunningStack(os.getpid(), url, ray_address)))
        scratch.rename(self._note)

    def running(self) -> RunningStack | None:
        """The stack that runs now, once it has noted where."""
        if not self._is_locked():
            return None
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._note.read_bytes(), type=RunningStack)
        return None

    def stop(self, timeout_s: float) -> bool:
        """Ask the running stack to stop and wait until it has; after ``timeout_s`` kill it. Whether one was running."""
        running = self.running()
        if running is None:
            return False
        try:
            process = psutil.Process(running.pid)
            family = [process, *process.children(recursive=True)]
            process.terminate()
            process.wait(timeout_s)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            process.kill()
        _, left = psutil.wait_procs(family, timeout=_FAMILY_S)
        for member in left:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(left, timeout=_FAMILY_S)
        return True

    def _is_locked(self) -> bool:
        if not self._folder.is_dir():
            return False
        try:
            with FileLock(self._folder / "stack.lock", timeout=0):
                return False
        except Timeout:
            return True
