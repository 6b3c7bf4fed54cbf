"""Host memory that is registered with CUDA, so that the GPU copies it directly, and an arena of such memory."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import structlog

from generator.tiers.arena import HostArena
from generator.tiers.base import Page

log = structlog.get_logger(__name__)

_MOST_BYTES = 64 << 30
"""Drivers refuse to register more at once."""


class CudaRuntime(Protocol):
    """The part of the CUDA runtime that registers memory. Errors have a ``value``, which is 0 for success."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any:  # noqa: ANN401, N802
        """Register host memory."""

    def cudaHostUnregister(self, address: int) -> Any:  # noqa: ANN401, N802
        """Undo the registration of memory at an address."""


def register(runtime: CudaRuntime, clear_error: Callable[[], None], memory: Page) -> Callable[[], None]:
    """Register ``memory``, an array of rows, with CUDA. Returns the function that undoes it.

    If CUDA refuses, nothing stays registered, a warning is logged, and ``clear_error`` takes back CUDA's last error.
    """
    row = memory.strides[0]
    rows = max(1, _MOST_BYTES // row)
    registered: list[int] = []

    def unregister() -> None:
        while registered:
            if int(runtime.cudaHostUnregister(registered.pop()).value):
                clear_error()

    for begin in range(0, len(memory), rows):
        address = memory.ctypes.data + begin * row
        error = runtime.cudaHostRegister(address, min(rows, len(memory) - begin) * row, 0)
        if int(error.value):
            clear_error()
            unregister()
            log.warning("host_memory_not_pinned", bytes=len(memory) * row, error=str(error))
            break
        registered.append(address)
    return unregister


class PinnedArena(HostArena):
    """A ``HostArena`` whose memory is pinned while it is attached. ``pin`` returns the function that unpins it."""

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        page_tokens: int,
        page_bytes: int,
        page_count: int,
        pin: Callable[[Page], Callable[[], None]],
    ) -> None:
        super().__init__(path, fingerprint, page_tokens, page_bytes, page_count)
        self._pinned = ExitStack()
        self._pinned.callback(pin(self._file.pages))

    def close(self) -> None:
        """Unpin the memory, and detach from it."""
        self._pinned.close()
        super().close()
