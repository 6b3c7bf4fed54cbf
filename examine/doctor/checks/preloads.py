"""Libraries that vLLM wants preloaded on a CPU."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.engines.vllm_arguments import has_gpu

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
