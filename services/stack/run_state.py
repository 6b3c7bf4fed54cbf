"""The files in which a running stack tells other commands where it is, and how its processes are ended.

The stack's process holds a lock for as long as it lives. The kernel releases the lock however the process ends, so a
note of a dead stack is never trusted.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from protocol.errors import Conflict


class RunningStack(msgspec.Struct, frozen=True):
    """A running stack: its process, the gateway's URL, and the address of its Ray."""

    pid: int
    url: str
    ray_address: str


class RunState:
    """The lock and the note of the one stack that may run on a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "run"
        self._note = self._folder / "stack.json"
        self._lock = FileLock(self._folder / "stack.lock")

    @property
    def log_file(self) -> Path:
        """The log of a detached stack."""
        return self._folder / "stack.log"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the data folder while the context is open. Raises Conflict if another stack has it."""
        # The log contains names of documents.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # `running` in another process holds the lock for an instant.
            self._lock.acquire(timeout=1)
        except Timeout:
            running = self.running()
            raise Conflict(
                f"a stack already runs on {self._folder.parent} at {running.url} (process {running.pid}); stop it with "
                "`ragtree down`"
                if running
                else f"another `ragtree up` or `ragtree join` runs on {self._folder.parent}"
            ) from None
        try:
            yield
        finally:
            self._note.unlink(missing_ok=True)
            self._lock.release()

    def publish(self, url: str, ray_address: str) -> None:
        """Write the note for the stack of this process. Call it while ``claimed``."""
        scratch = self._note.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(RunningStack(os.getpid(), url, ray_address)))
        scratch.rename(self._note)

    def running(self) -> RunningStack | None:
        """Return the running stack, once it has published its note."""
        if not self._is_locked():
            return None
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._note.read_bytes(), type=RunningStack)
        return None

    def stop(self, timeout_s: float) -> bool:
        """Stop the running stack and wait; kill it after ``timeout_s`` seconds. Return whether one was running."""
        running = self.running()
        if running is None:
            return False
        with suppress(psutil.NoSuchProcess):
            end_family(psutil.Process(running.pid), timeout_s)
        return True

    def _is_locked(self) -> bool:
        if not self._folder.is_dir():
            return False
        try:
            with FileLock(self._folder / "stack.lock", timeout=0):
                return False
        except Timeout:
            return True


def end_of(log: Path) -> str:
    """Return the last lines of a log, and where all of it is."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([*lines[-20:], f"(full log: {log})"])


_OUTLIVE_S = 10.0
"""How long Ray's processes may outlive the one that started them before they are killed."""


def end_family(process: psutil.Process, timeout_s: float) -> None:
    """Terminate a process, kill it after ``timeout_s`` seconds, and wait until its descendants are gone as well."""
    try:
        family = [process, *process.children(recursive=True)]
        process.terminate()
        process.wait(timeout_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        process.kill()
    await_end(family)


def await_end(processes: Iterable[psutil.Process]) -> None:
    """Wait until processes are gone that end by themselves, and kill those that take too long."""
    _, left = psutil.wait_procs(processes, timeout=_OUTLIVE_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_OUTLIVE_S)
