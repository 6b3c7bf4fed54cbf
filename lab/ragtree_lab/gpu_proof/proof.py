"""The proof: groups of checks, each in a process of its own, on this machine's GPU or, in a small form, on its CPU."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examine.doctor import outcome
from ragtree_lab.gpu_proof import random_weights
from ragtree_lab.gpu_proof.groups import groups, missing
from ragtree_lab.gpu_proof.machine import Machine
from ragtree_lab.gpu_proof.results import CheckResult, Report
from ragtree_lab.gpu_proof.supervisor import Supervisor

LEVELS = frozenset({1, 2, 3})
"""1: blocks, 2: engines, 3: benchmarks."""
GPU_BUDGET_S = 480.0
QUICK_BUDGET_S = 240.0
_CPU_BUDGET_S = 1800.0
_PREFIX = "ragtree-gpu-proof-"
_TMPFS = "/dev/shm"  # noqa: S108  # nosec B108  # a new folder in it belongs to this user


class Scope(msgspec.Struct, frozen=True):
    """What a proof covers: the checks of ``levels`` whose name contains ``only``, within ``budget`` seconds.

    ``small`` is the form for a CPU, ``quick`` the one of four minutes. ``cpu_python`` is an interpreter with a vLLM for
    CPUs. The processes' logs are kept in ``logs``.
    """

    budget: float = GPU_BUDGET_S
    levels: frozenset[int] = LEVELS
    only: str = ""
    small: bool = False
    quick: bool = False
    cpu_python: str = ""
    logs: Path | None = None


def thorough() -> tuple[outcome.CheckResult, ...]:
    """Prove all that this machine can, for ``ragtree doctor --thorough``."""
    scope = Scope() if _machine().gpu else Scope(_CPU_BUDGET_S)
    return tuple(
        outcome.CheckResult(check.name, check.status, check.figure, check.why) for check in prove(scope).checks
    )


def prove(scope: Scope) -> Report:
    """Run the checks, with progress on standard error."""
    began = time.monotonic()
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(str(Path(__file__).parents[up]) for up in (2, 3)))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    found: list[CheckResult] = []
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_TMPFS) as memory,
    ):
        scratch = Path(folder)
        random_weights.install(scratch / "plugin")
        machine = _machine()
        if not machine.has_flashinfer:
            # vLLM 0.26 samples with it by default, even if it is not installed.
            os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        small = scope.small or not machine.gpu
        cpu_python = scope.cpu_python or (sys.executable if small else "")
        planned = groups(machine, small, scope.levels, scope.only, cpu_python, quick=scope.quick)
        console = Console(stderr=True)
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("starting", total=sum(len(group.checks) for group in planned))

            def report(result: CheckResult) -> None:
                found.append(result)
                progress.advance(bar)
                console.print(f"{result.status}: {result.name} {result.figure}{result.why}", highlight=False)

            supervisor = Supervisor(
                lambda task: [sys.executable, "-m", "ragtree_lab.gpu_proof.process", str(task)],
                scratch,
                Path(memory),
                began + scope.budget,
                report,
                lambda check: progress.update(bar, description=check),
            )
            for group in planned:
                if why := missing(group, machine):
                    supervisor.skip(group, group.checks, why)
                else:
                    supervisor.run(group)
                if scope.logs is not None:
                    _copy_logs(scratch, scope.logs)
    given = {
        "budget": scope.budget,
        "levels": sorted(scope.levels),
        "only": scope.only,
        "small": scope.small,
        "quick": scope.quick,
    }
    return Report(msgspec.to_builtins(machine), given, time.monotonic() - began, found)


def _machine() -> Machine:
    command = [sys.executable, "-m", "ragtree_lab.gpu_proof.machine"]
    answer = subprocess.run(command, capture_output=True, check=True)  # noqa: S603  # nosec B603  # our own command
    return msgspec.json.decode(answer.stdout.splitlines()[-1], type=Machine)


def _copy_logs(scratch: Path, folder: Path) -> None:
    """Copy what the processes so far have written."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in scratch.glob("process-*/log"):
        shutil.copyfile(log, folder / f"{log.parent.name}.log")
