"""Checks on this machine that KV survives its way through a GPU, and writes what it found to a file (docs/gpu.md)."""

import argparse
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

from scripts.gpu_proof import random_weights
from scripts.gpu_proof.groups import groups, missing
from scripts.gpu_proof.machine import Machine
from scripts.gpu_proof.results import CheckResult, Report
from scripts.gpu_proof.supervisor import Supervisor

_BUDGET_S = 480.0
_PREFIX = "ragtree-gpu-proof-"
_TMPFS = "/dev/shm"  # noqa: S108 - a new folder in it belongs to this user


def main() -> int:
    """Return 1 if a check failed or none passed, else 0."""
    options = _options()
    began = time.monotonic()
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
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
        small = options.small or not machine.gpu
        cpu_python = options.cpu_python or (sys.executable if small else "")
        planned = groups(machine, small, options.levels, options.only, cpu_python)
        console = Console(stderr=True)
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("starting", total=sum(len(group.checks) for group in planned))

            def report(result: CheckResult) -> None:
                found.append(result)
                progress.advance(bar)
                console.print(f"{result.status}: {result.name} {result.figure}{result.why}", highlight=False)

            supervisor = Supervisor(
                lambda task: [sys.executable, "-m", "scripts.gpu_proof.process", str(task)],
                scratch,
                Path(memory),
                began + options.budget,
                report,
                lambda check: progress.update(bar, description=check),
            )
            for group in planned:
                if why := missing(group, machine):
                    supervisor.skip(group, group.checks, why)
                else:
                    supervisor.run(group)
                if options.logs is not None:
                    _copy_logs(scratch, options.logs)
    given = {"budget": options.budget, "levels": sorted(options.levels), "only": options.only, "small": options.small}
    result = Report(msgspec.to_builtins(machine), given, time.monotonic() - began, found)
    result.write(options.output)
    Console(width=200 if not sys.stdout.isatty() else None).print(result.table())
    return int(not result.proves)


def _machine() -> Machine:
    answer = subprocess.run([sys.executable, "-m", "scripts.gpu_proof.machine"], capture_output=True, check=True)
    return msgspec.json.decode(answer.stdout.splitlines()[-1], type=Machine)


def _copy_logs(scratch: Path, folder: Path) -> None:
    """Copy what the processes so far have written."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in scratch.glob("process-*/log"):
        shutil.copyfile(log, folder / f"{log.parent.name}.log")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-proof", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("gpu-proof.json"), help="file for the report")
    parser.add_argument("--logs", type=Path, help="folder for the processes' logs, which are dropped by default")
    parser.add_argument("--budget", type=float, default=_BUDGET_S, help="seconds; what no longer fits is skipped")
    parser.add_argument("--levels", type=_levels, default={1, 2, 3}, help="1: blocks, 2: engines, 3: benchmarks")
    parser.add_argument("--only", default="", help="run only the checks whose name has this in it")
    parser.add_argument(
        "--cpu-python", help="an interpreter with vLLM for a CPU, of the same version; its engine then shares KV"
    )
    parser.add_argument("--small", action="store_true", help="the small form, which runs without a GPU anyway")
    return parser.parse_args()


def _levels(given: str) -> set[int]:
    levels = {int(level) for level in given.split(",")}
    if not levels <= {1, 2, 3}:
        raise argparse.ArgumentTypeError("levels are 1, 2 and 3")
    return levels


if __name__ == "__main__":
    sys.exit(main())
