"""Room for what the stack takes: memory of the machine, host memory and disk."""

import os
import shutil
from pathlib import Path
from time import perf_counter

import psutil

from examine.doctor.checks.model import Model
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.engines.vllm_arguments import has_gpu

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


class Memory:
    """Compares what the stack will take with what the machine, or its container, has available."""

    name = "memory"
    needs = (Model.name,)

    def __init__(self, cgroup: Path = _CGROUP) -> None:
        self._cgroup = cgroup

    async def run(self, context: Context) -> Outcome:
        """Fails if weights, KV cache and host memory do not fit. With a GPU, only host memory counts."""
        available = min(psutil.virtual_memory().available, self._container_bytes())
        figure = f"{available / _GIB:.1f} GiB available"
        if context.surroundings.stack_url is not None:
            return Outcome.passed(f"{figure} beside the running stack")
        settings, folder = context.settings, context.model_folder
        parts = {"host memory": settings.kv.host_gib * _GIB}
        if not has_gpu():
            parts["the KV cache"] = settings.cpu_kv_cache_gib * _GIB
            parts["the weights"] = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in _WEIGHTS)
        needed = sum(parts.values())
        figure += f", the stack takes {needed / _GIB:.1f} GiB for {', '.join(parts)}"
        if needed > available:
            return Outcome.failed(
                f"the stack needs {needed / _GIB:.1f} GiB, but only {available / _GIB:.1f} GiB are available: lower "
                "generator.kv.host_gib or generator.cpu_kv_cache_gib, or use a smaller model",
                figure,
            )
        return Outcome.passed(figure)

    def _container_bytes(self) -> float:
        """Return what the memory limit of this control group leaves; infinite without a limit."""
        try:
            limit = (self._cgroup / "memory.max").read_text().strip()
            used = int((self._cgroup / "memory.current").read_text())
        except (OSError, ValueError):
            return float("inf")
        return float("inf") if limit == "max" else max(0.0, int(limit) - used)


class HostMemory:
    """Compares ``generator.kv.host_gib`` with what its file system has free, or the stack already has there."""

    name = "host memory"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if the memory does not fit."""
        kv, folder = context.settings.kv, context.place.host
        if not kv.host_gib:
            return Outcome.skipped("generator.kv.host_gib is 0")
        if folder is None:
            return Outcome.failed(context.place.host_error)
        held = sum(file.stat().st_blocks * 512 for file in kv.host_dir.glob(f"{kv.host_file.stem}*.kv"))
        free = shutil.disk_usage(folder).free
        figure = f"{free / _GIB:.1f} GiB free in {kv.host_dir}"
        if held:
            figure += f", {held / _GIB:.1f} GiB are the stack's own"
        if kv.host_gib * _GIB > free + held:
            larger = "enlarge that file system (in a container, with docker run --shm-size)"
            return _too_small("host_gib", kv.host_gib, kv.host_dir, free, larger, figure)
        return Outcome.passed(figure)


_PROBE_BYTES = 32 << 20


class Disk:
    """Writes a file beside the KV on disk, and compares ``generator.kv.disk_gib`` with what is free there."""

    name = "disk"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if nothing can be written, or if the disk is too small."""
        kv, folder = context.settings.kv, context.place.disk
        if not kv.disk_gib:
            return Outcome.skipped("generator.kv.disk_gib is 0")
        if kv.object_store is not None:
            return Outcome.skipped("generator.kv.object_store has the KV in the place of a folder")
        if folder is None or kv.disk_dir is None:
            return Outcome.failed(context.place.disk_error)
        free = shutil.disk_usage(folder).free
        try:
            rate = _write_rate(folder / "probe")
        except OSError as error:
            return Outcome.failed(f"the folder for KV on disk {kv.disk_dir} cannot be written to: {error.strerror}")
        figure = f"{free / _GIB:.1f} GiB free in {kv.disk_dir}, writes {rate / 1e6:.0f} MB/s"
        held = sum(file.stat().st_size for file in kv.disk_dir.rglob("*.safetensors"))
        if kv.disk_gib * _GIB > free + held:
            return _too_small(
                "disk_gib", kv.disk_gib, kv.disk_dir, free, "set generator.kv.disk_dir to a larger disk", figure
            )
        return Outcome.passed(figure)


def _write_rate(file: Path) -> float:
    """Return bytes per second of a file that is written and flushed to the disk. Raises OSError."""
    content = os.urandom(_PROBE_BYTES)
    try:
        with file.open("wb") as opened:
            began = perf_counter()
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
            return len(content) / (perf_counter() - began)
    finally:
        file.unlink(missing_ok=True)


def _too_small(option: str, gib: float, folder: Path, free: int, larger: str, figure: str) -> Outcome:
    has = f"{folder} has only {free / _GIB:.2g} GiB free"
    return Outcome.failed(f"generator.kv.{option} is {gib:g}, but {has}: lower it, or {larger}", figure)
