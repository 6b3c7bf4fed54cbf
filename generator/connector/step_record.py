"""The plans that an engine computes now, in a file that outlives the engine.

A step that ends the engine leaves nothing else behind. So the process that has started the engine knows which requests
were computed when it died, and which ones only waited.
"""

import os
import tempfile
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

STEP_FILE = "step_file"
"""The entry of ``kv_connector_extra_config`` that names the file."""

_LENGTH = 8


class StepRecord:
    """The record as the engine's scheduler writes it, into a ``file``; None for no record."""

    def __init__(self, file: str | None) -> None:
        self._descriptor = None if file is None else os.open(file, os.O_WRONLY)
        self._names: Set[str] = frozenset()

    def write(self, names: Set[str]) -> None:
        """Record the plans of the steps under way, by name. Writes nothing if they are those of the last call."""
        if self._descriptor is None or names == self._names:
            return
        self._names = names
        text = "\n".join(names).encode()
        os.pwrite(self._descriptor, len(text).to_bytes(_LENGTH, "little") + text, 0)


class LastSteps:
    """The record as the process reads it that starts the engine. The file has no name once the engine has opened it."""

    def __init__(self) -> None:
        self._descriptor, name = tempfile.mkstemp(prefix="ragtree-step-")
        self._path = Path(name)

    def name_in(self, config: "VllmConfig") -> None:
        """Name the file in the configuration of an engine that has not started yet."""
        transfer = config.kv_transfer_config
        transfer.kv_connector_extra_config = {**transfer.kv_connector_extra_config, STEP_FILE: str(self._path)}

    def opened(self) -> None:
        """Remove the file's name: the engine has opened the file, or has failed to start. Idempotent."""
        self._path.unlink(missing_ok=True)

    def names(self) -> frozenset[str]:
        """The plans of the last steps that the engine began."""
        length = int.from_bytes(os.pread(self._descriptor, _LENGTH, 0), "little")
        return frozenset(os.pread(self._descriptor, length, _LENGTH).decode("utf-8", "replace").split("\n"))

    def close(self) -> None:
        """Give the file back. Idempotent; nothing is read afterwards."""
        self.opened()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
