"""The process of one group: runs its checks one after another, and writes what each one found to a file.

Usage: python -m ragtree_lab.gpu_proof.process FILE, with a ``Task`` as JSON in the file.
"""

import asyncio
import importlib
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from examine.doctor.outcome import Status
from protocol.errors import ConfigError
from ragtree_lab.gpu_proof.groups import Check, Group
from ragtree_lab.gpu_proof.results import CheckResult, Event

_KINDS = {
    "blocks": ("ragtree_lab.gpu_proof.block_checks", "BlockChecks"),
    "composing": ("ragtree_lab.gpu_proof.composing_checks", "ComposingChecks"),
    "engine": ("ragtree_lab.gpu_proof.engine_checks", "EngineChecks"),
    "sharing": ("ragtree_lab.gpu_proof.sharing_checks", "SharingChecks"),
    "benchmarks": ("ragtree_lab.gpu_proof.benchmark_checks", "BenchmarkChecks"),
}


class Task(msgspec.Struct, frozen=True):
    """What a process does, with its files in ``folder``, and host memory in the tmpfs ``memory``."""

    group: Group
    folder: str
    memory: str

    @property
    def scratch(self) -> Path:
        """A folder for the process's own files."""
        return Path(self.folder)

    @property
    def results(self) -> Path:
        """The file to which the process writes what it finds."""
        return self.scratch / "results"

    @property
    def log(self) -> Path:
        """The file with the process's output."""
        return self.scratch / "log"

    def host_folder(self, size: int) -> Path:
        """A folder for ``size`` bytes of host memory: the tmpfs if they fit in twice, else one on disk."""
        return Path(self.memory) if shutil.disk_usage(self.memory).free > 2 * size else self.scratch


class Checks(Protocol):
    """A group's checks. Each is a method that returns a figure, or raises what is wrong."""

    async def usable(self) -> bool:
        """Whether further checks can run in this process after one has failed."""

    async def close(self) -> None:
        """End what the checks have started."""


async def run(task: Task) -> None:
    """Run a group's checks until one leaves the process unusable."""
    module, name = _KINDS[task.group.kind]
    checks: Checks = getattr(importlib.import_module(module), name)(task)
    try:
        for check in task.group.checks:
            _write(task, Event(begun=check.name))
            result = await _result(checks, check, task)
            _write(task, Event(result=result))
            if result.status is Status.FAILED and (check.required or not await checks.usable()):
                return
    finally:
        await checks.close()


async def _result(checks: Checks, check: Check, task: Task) -> CheckResult:
    method: Callable[..., Awaitable[Any]] = getattr(checks, check.call)
    began = time.perf_counter()
    try:
        figure = str(await method(**check.arguments))
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, ConfigError):
            # The engine's process only wrote its reason down.
            why = f"{why} ({last_error(task.log)})"
        return CheckResult(check.name, task.group.level, Status.FAILED, time.perf_counter() - began, why=why)
    return CheckResult(check.name, task.group.level, Status.PASSED, time.perf_counter() - began, figure)


def _write(task: Task, event: Event) -> None:
    with task.results.open("ab") as results:
        results.write(msgspec.json.encode(event) + b"\n")


def last_error(log: Path) -> str:
    """The last line of a log that names an error, or else the last line that says anything."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    said = [line for line in lines if line] or ["it wrote nothing"]
    return next((line for line in reversed(said) if "Error:" in line), said[-1])[-300:]


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)))
