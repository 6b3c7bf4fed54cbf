"""The CPU's instructions for matrices."""

from pathlib import Path

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.engines.vllm_arguments import has_gpu

_BFLOAT16 = ("amx_bf16", "avx512_bf16")
_FAST = (*_BFLOAT16, "avx512f", "avx2")


class Instructions:
    """Looks for instructions that vLLM's CPU kernels use, in the file ``cpuinfo``."""

    name = "instructions"
    needs = ()

    def __init__(self, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        self._cpuinfo = cpuinfo

    async def run(self, context: Context) -> Outcome:  # noqa: ARG002
        """Warns if the CPU has none for bfloat16."""
        if has_gpu():
            return Outcome.skipped("the engine computes on a GPU")
        lines = self._cpuinfo.read_text().splitlines()
        flags = set(next((line for line in lines if line.startswith("flags")), "").split())
        found = [flag for flag in _FAST if flag in flags]
        figure = ", ".join(found) or "none of those that vLLM uses"
        if flags.isdisjoint(_BFLOAT16):
            return Outcome.warning(
                "the CPU has neither AMX nor AVX512-BF16, so the engine computes in float32: KV takes twice the memory "
                "of bfloat16, and prefills are several times slower than on a CPU with them",
                figure,
            )
        return Outcome.passed(figure)
