"""Runs groups of checks in processes, within time limits. A check that hangs or crashes does not stop the others."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from examine.doctor.outcome import Status
from ragtree_lab.gpu_proof.groups import Check, Group
from ragtree_lab.gpu_proof.process import Task, last_error
from ragtree_lab.gpu_proof.results import CheckResult, Event

_LOOK_S = 0.1
_CLOSE_S = 10.0

Command = Callable[[Path], list[str]]
"""The command of a process that does the task in a file."""


class Supervisor:
    """Runs groups until ``deadline``, a time of ``time.monotonic``, and passes each result to ``report``.

    ``begun`` is called with the name of each check that begins. Files go to ``scratch``, host memory to ``memory``.
    """

    def __init__(
        self,
        command: Command,
        scratch: Path,
        memory: Path,
        deadline: float,
        report: Callable[[CheckResult], None],
        begun: Callable[[str], None],
    ) -> None:
        self._command = command
        self._scratch = scratch
        self._memory = memory
        self._deadline = deadline
        self._report = report
        self._begun = begun
        self._processes = 0

    def skip(self, group: Group, checks: list[Check], why: str) -> None:
        """Report checks as left out."""
        for check in checks:
            self._report(CheckResult(check.name, group.level, Status.SKIPPED, why=why))

    def run(self, group: Group) -> None:
        """Run a group's checks. A process that ends early is replaced by one for the checks that are left."""
        left = group.checks
        while left:
            if time.monotonic() + group.start_s > self._deadline:
                self.skip(group, left, "no time is left for it")
                return
            done = self._run_process(msgspec.structs.replace(group, checks=left))
            last = done[-1]
            left = left[len(done) :]
            if last.status is Status.SKIPPED:
                self.skip(group, left, last.why)
                return
            required = next(check.required for check in group.checks if check.name == last.name)
            if last.status is Status.FAILED and required:
                self.skip(group, left, f"{last.name} failed")
                return

    def _run_process(self, group: Group) -> list[CheckResult]:
        """The results of a process, at least one."""
        self._processes += 1
        folder = self._scratch / f"process-{self._processes}"
        folder.mkdir(parents=True)
        task = Task(group, str(folder), str(self._memory))
        task.results.touch()
        (folder / "task").write_bytes(msgspec.json.encode(task))
        with task.log.open("wb") as log, self._process(folder / "task", group, log.fileno()) as process:
            return self._follow(process, task)

    def _follow(self, process: "subprocess.Popen[bytes]", task: Task) -> list[CheckResult]:
        """Read a process's results until it ends, or until a limit has passed."""
        group, done = task.group, list[CheckResult]()
        events = _events(task.results)
        began, limit = time.monotonic(), group.start_s + group.checks[0].limit_s
        while len(done) < len(group.checks):
            # Asked first, because a process may write its last lines after they were looked for, and end then.
            ended = process.poll() is not None
            while (event := next(events)) is not None:
                if event.result is not None:
                    done.append(event.result)
                    self._report(event.result)
                    continue
                self._begun(event.begun)
                if done:
                    began, limit = time.monotonic(), group.checks[len(done)].limit_s
            if len(done) == len(group.checks) or (ended and done and done[-1].status is Status.FAILED):
                break
            took = time.monotonic() - began
            status, why = Status.FAILED, ""
            if ended:
                why = f"the process ended with exit status {process.returncode}: {last_error(task.log)}"
            elif time.monotonic() > self._deadline:
                status, why = Status.SKIPPED, "the time of the whole run is over"
            elif took > limit:
                why = f"it took longer than {limit:.0f} s: {last_error(task.log)}"
            if why:
                done.append(CheckResult(group.checks[len(done)].name, group.level, status, took, why=why))
                self._report(done[-1])
                return done
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        with suppress(subprocess.TimeoutExpired):
            # It closes its engine.
            process.wait(_CLOSE_S)
        return done

    @contextmanager
    def _process(self, task: Path, group: Group, log: int) -> "Iterator[subprocess.Popen[bytes]]":
        """A process and all that it starts, ended at the end of the block."""
        process = subprocess.Popen(  # noqa: S603  # nosec B603  # our own command
            self._command(task),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **group.environment},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _events(file: Path) -> Iterator[Event | None]:
    """The events in a file that grows. None whenever there is none yet."""
    decoder = msgspec.json.Decoder(Event)
    with file.open("rb") as opened:
        rest = b""
        while True:
            rest += opened.read()
            line, end, rest_of_it = rest.partition(b"\n")
            if end:
                rest = rest_of_it
                yield decoder.decode(line)
            else:
                yield None
