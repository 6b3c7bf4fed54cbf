"""Starts and stops a stack in its own process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protocol.errors import RagtreeError
from services.client import NotReady, StackClient
from services.stack.run_state import RunningStack, RunState, end_of


class StartFailed(RagtreeError):
    """A stack ended, or was stopped, before it was ready. The message has the end of its log."""

    code = "start_failed"


class StackProcess:
    """Starts a detached ``ragtree up`` on a data folder and waits until it answers queries.

    ``environment`` is added to this process's own. Use it to pass a different configuration.
    """

    def __init__(self, data_dir: Path, environment: Mapping[str, str] | None = None) -> None:
        self._state = RunState(data_dir)
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
                start_new_session=True,
            )
        try:
            return self._wait(process, time.monotonic() + wait_s, on_wait)
        except BaseException:
            # Also on Ctrl-C: the caller has no way to find the stack, so it must not keep running.
            self._state.stop(timeout_s=30)
            process.kill()
            process.wait()
            raise

    def stop(self, timeout_s: float = 60.0) -> bool:
        """Stop the stack that runs on the folder; return whether there was one."""
        return self._state.stop(timeout_s)

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
