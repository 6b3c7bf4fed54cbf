"""Between an engine's process and the one that has started it: the end of both, and what was computed last.

vLLM ends its engines when it is closed. After a SIGKILL nobody does, and an engine would keep its GPU for good. A step
that ends the engine leaves nothing but a file, which outlives the engine: it tells which requests were computed when it
died, and which ones only waited.
"""

import atexit
import gc
import mmap
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Set
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_PATIENCE_S = 10.0
"""After SIGTERM, an engine has this long to end its ranks and to free its shared memory."""
STEP_FILE = "step_file"
"""The entry of ``kv_connector_extra_config`` that names the file."""

_LENGTH = 8
_ROOM = 1 << 20
"""Bytes of the file: for the names of more requests than an engine computes at once."""


def end_with_parent() -> None:
    """Watch the parent from now on. Does nothing in a process that ``multiprocessing`` has not started."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="parent-watch", daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_without_collecting() -> None:
    """Do so when this process ends. Does nothing in a process that ``multiprocessing`` has not started."""
    if multiprocessing.parent_process() is not None:
        atexit.register(gc.freeze)


class StepRecord:
    """The record as the engine's scheduler writes it, into a ``file``; None for no record.

    The file is mapped, because the kernel may give the core to another process at each system call. It keeps what the
    process has written when that dies.
    """

    def __init__(self, file: str | None) -> None:
        self._memory: mmap.mmap | None = None
        if file is not None:
            with Path(file).open("r+b") as opened:
                self._memory = mmap.mmap(opened.fileno(), _ROOM)
        self._names: Set[str] = frozenset()

    def write(self, names: Set[str]) -> None:
        """Record the plans of the steps under way, by name. Writes nothing if they are those of the last call."""
        if self._memory is None or names == self._names:
            return
        self._names = names
        text = "\n".join(names).encode()[: _ROOM - _LENGTH]
        # Between these lines, the record is that of no plans.
        self._memory[:_LENGTH] = bytes(_LENGTH)
        self._memory[_LENGTH : _LENGTH + len(text)] = text
        self._memory[:_LENGTH] = len(text).to_bytes(_LENGTH, "little")


class LastSteps:
    """The record as the process reads it that starts the engine. The file has no name once the engine has opened it."""

    def __init__(self) -> None:
        self._descriptor, name = tempfile.mkstemp(prefix="ragtree-step-")
        # Not sparse: to write into a hole of a mapped file would end the engine if the file system is full.
        os.posix_fallocate(self._descriptor, 0, _ROOM)
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
