"""Memory of the machine."""

from pathlib import Path

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
        assert folder is not None
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
