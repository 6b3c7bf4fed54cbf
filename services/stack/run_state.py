"""The files in which a running stack tells other commands where it is, and how its processes are ended.

The stack's process holds a lock for as long as it lives. The kernel releases the lock however the process ends, so a
note of a dead stack is never trusted.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
from filelock import FileLock, Timeout

from protocol.errors import Conflict, RagtreeError
from services.client import NotReady, StackClient

_OUTLIVE_S = 10.0
"""How long Ray's processes may outlive the one that started them before they are killed."""


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


class StartFailed(RagtreeError):
    """A stack ended, or was stopped, before it was ready. The message has the end of its log."""

    code = "start_failed"


class StackProcess:
    """Starts a detached ``ragtree up`` on a data folder and waits until it answers queries.

    ``environment`` is added to this process's own. Use it to pass a different configuration. ``own_session``: the stack
    outlives the caller's terminal. Turn it off to measure: Linux may divide processors among sessions before it looks
    at priorities (autogroup), so that ingestion in one session takes as much as everything in another.
    """

    def __init__(
        self, data_dir: Path, environment: Mapping[str, str] | None = None, *, own_session: bool = True
    ) -> None:
        self._state = RunState(data_dir)
        self._own_session = own_session
        self._environment = {**os.environ, "RAGTREE_DATA_DIR": str(data_dir), **(environment or {})}

    def start(self, wait_s: float, on_wait: Callable[[str], None] = lambda _: None) -> RunningStack:
        """Start the stack and wait for it; ``on_wait`` is called with what is still missing.

        Raises Conflict if a stack already runs on the folder, StartFailed if this one is not ready within ``wait_s``
        seconds.
        """
        with self._state.claimed():
            pass  # raises at once if another stack runs there
        with self._state.log_file.open("wb") as output:
            process = subprocess.Popen(  # nosec B603  # no argument comes from a request
                [sys.executable, "-m", "services.cli", "up"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=self._own_session,
                # Ctrl-C in the caller's terminal is not for the stack. A new session has a group of its own.
                process_group=None if self._own_session else 0,
            )
        try:
            return self._wait(process, time.monotonic() + wait_s, on_wait)
        except BaseException:
            # Also on Ctrl-C: the caller has no way to find the stack, so it must not keep running.
            self.stop(timeout_s=30)
            process.kill()
            process.wait()
            raise

    def stop(self, timeout_s: float = 60.0) -> bool:
        """Stop the stack that runs on the folder; kill it after ``timeout_s`` seconds. Return whether there was one."""
        running = self._state.running()
        if running is None:
            return False
        with suppress(psutil.NoSuchProcess):
            end_family(psutil.Process(running.pid), timeout_s)
        return True

    def _wait(self, process: subprocess.Popen[bytes], deadline: float, on_wait: Callable[[str], None]) -> RunningStack:
        missing = NotReady("Ray is starting", final=False)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise StartFailed(f"the stack exited while it was starting:\n{self._log_tail()}")
            running = self._state.running()
            if running is not None:
                answer = StackClient(running.url, timeout_s=10).readiness()
                if answer is None:
                    return running
                if answer.final:
                    raise StartFailed(f"the stack cannot start and was stopped: {answer.reason}")
                missing = answer
            on_wait(missing.reason)
            time.sleep(0.2)
        raise StartFailed(f"the stack was not ready in time and was stopped: {missing.reason}\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return end_of(self._state.log_file)
