"""The machine: what else uses it, and what its CPU and libraries make slow."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.engines.vllm_arguments import has_gpu


class OtherWork:
    """Reports a running stack and other busy processes. Beside them the other checks use little."""

    name = "other work"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Warns that times say little on a busy machine."""
        surroundings, sizes = context.surroundings, context.sizes
        busy = f"{surroundings.busy_share:.0%} of the CPUs are busy"
        if not surroundings.crowded:
            return Outcome.passed(busy)
        work, them = "other processes use the machine", "them"
        if surroundings.stack_url is not None:
            work, them = f"a stack runs at {surroundings.stack_url}", "the stack"
        return Outcome.warning(
            f"{work}, so this doctor uses little and its times say little: stop {them} for a full examination",
            f"{busy}; {sizes.prompts} prompts, {sizes.memory_gib:g} GiB, one thread",
        )


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


_LIBRARIES = {"libtcmalloc": "libtcmalloc*.so*", "libiomp5": "libiomp5.so"}
_FOLDERS = (Path(sys.prefix) / "lib", Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib"))


class Preloads:
    """Looks for tcmalloc and Intel's OpenMP in ``LD_PRELOAD``, and in ``folders`` if they are not there."""

    name = "preloaded libraries"
    needs = ()

    def __init__(self, environment: Mapping[str, str] = os.environ, folders: Sequence[Path] = _FOLDERS) -> None:
        self._environment = environment
        self._folders = folders

    async def run(self, context: Context) -> Outcome:  # noqa: ARG002
        """Warns about those that are missing, with the variable to set if they are installed."""
        if has_gpu():
            return Outcome.skipped("the engine computes on a GPU")
        preloaded = self._environment.get("LD_PRELOAD", "")
        missing = {name: pattern for name, pattern in _LIBRARIES.items() if name not in preloaded}
        if not missing:
            return Outcome.passed(preloaded)
        found = [str(file) for pattern in missing.values() if (file := self._find(pattern)) is not None]
        how = f"start with LD_PRELOAD={':'.join(found)}" if found else "install them and set LD_PRELOAD"
        return Outcome.warning(f"vLLM recommends to preload {' and '.join(missing)} on a CPU: {how}", preloaded)

    def _find(self, pattern: str) -> Path | None:
        return next((file for folder in self._folders for file in sorted(folder.glob(pattern))), None)
