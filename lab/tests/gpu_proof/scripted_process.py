"""Stands in for a group's process: each check does what its name says, to the supervisor."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from examine.doctor.outcome import Status
from ragtree_lab.gpu_proof.process import Task
from ragtree_lab.gpu_proof.results import CheckResult, Event


def main() -> None:
    task = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)

    def write(event: Event) -> None:
        with task.results.open("ab") as results:
            results.write(msgspec.json.encode(event) + b"\n")

    def hang() -> None:
        child = subprocess.Popen(["sleep", "6000"])
        (task.scratch / "child").write_text(str(child.pid))
        child.wait()

    for check in task.group.checks:
        if check.call == "hang at the start":
            hang()
        write(Event(begun=check.name))
        if check.call == "crash":
            print("a last word", flush=True)
            sys.exit(3)
        if check.call == "kill":
            print("a last word", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if check.call == "hang":
            hang()
        if check.call == "fail":
            write(Event(result=CheckResult(check.name, task.group.level, Status.FAILED, why="as asked")))
            return
        write(Event(result=CheckResult(check.name, task.group.level, Status.PASSED, figure=task.scratch.name)))
        if check.call == "pass then crash":
            sys.exit(3)
        if check.call == "pass then hang":
            hang()


if __name__ == "__main__":
    main()
