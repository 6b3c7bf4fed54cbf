"""The device that this machine's engine computes on, found without loading an engine."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")
_NATIVE_BFLOAT16 = {"avx512_bf16", "amx_tile"}
_ASK_S = 20.0


class Device(NamedTuple):
    """A GPU, or the CPU: its name, and its memory in bytes. The memory of a CPU is what its container may use.

    ``native_bfloat16`` says whether it computes in bfloat16 without emulation.
    """

    name: str
    memory: int
    is_gpu: bool
    native_bfloat16: bool


def find_device(cgroup: Path = _CGROUP, cpu_info: Path = _CPU_INFO) -> Device:
    """Return the smallest of the GPUs if the installed vLLM computes on GPUs, else the CPU."""
    gpus = _gpus() if _computes_on_gpus() else []
    if gpus:
        return min(gpus, key=lambda gpu: gpu.memory)
    flags = set(cpu_info.read_text(encoding="utf-8").split())
    memory = min(psutil.virtual_memory().total, _container_limit(cgroup))
    return Device("CPU", int(memory), is_gpu=False, native_bfloat16=not _NATIVE_BFLOAT16.isdisjoint(flags))


def _computes_on_gpus() -> bool:
    # vLLM for CPUs is another package with the same modules.
    try:
        distribution("vllm")
    except PackageNotFoundError:
        return False
    return True


def _gpus() -> list[Device]:
    """Return what NVIDIA's driver lists; nothing without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run(  # noqa: S603  # nosec B603  # fixed arguments
            [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.rpartition(",") for line in told.splitlines()]
    return [
        Device(name.strip(), int(mib) << 20, is_gpu=True, native_bfloat16=True)
        for name, _, mib in lines
        # A GPU that shares its memory with the CPU, or is lost, has no number here.
        if mib.strip().isdigit()
    ]


def _container_limit(cgroup: Path) -> float:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
    except OSError:
        return float("inf")
    return float("inf") if limit == "max" else int(limit)
