"""Host memory that is registered with CUDA, so that the GPU copies it directly; any other goes through such memory."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import structlog

from generator.connector.blocks.device_copies import DeviceCopies
from generator.tiers.arena import HostArena
from generator.tiers.base import Page

log = structlog.get_logger(__name__)

_MOST_BYTES = 64 << 30
"""Drivers refuse to register more at once."""
_BUFFER_BYTES = 8 << 20

Start: TypeAlias = Callable[[Page, Sequence[int], Sequence[int]], None]
"""Starts to copy rows of pinned pages to as many targets on the device, by number."""


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


class PinnedPath:
    """Copies pinned memory directly, and any other through pinned buffers, two for each thread."""

    def __init__(self, copies: DeviceCopies, page_bytes: int) -> None:
        self._copies = copies
        self._page_bytes = page_bytes
        self._threads = threading.local()

    def copy(self, pages: Page, rows: Sequence[int], targets: Sequence[int], start: Start) -> None:
        """Copy rows of ``pages``. Pinned memory must stay until the copies are done; any other is free on return."""
        if self._copies.is_pinned(pages):
            start(pages, rows, targets)
            return
        buffers = self._buffers
        for begin in range(0, len(rows), buffers.rows):
            part = slice(begin, begin + buffers.rows)
            buffer = buffers.take()
            for place, row in enumerate(rows[part]):
                buffer[place] = pages[row]
            start(buffer, range(len(rows[part])), targets[part])
            buffers.given()

    def page(self) -> Page:
        """A pinned page of the calling thread's, until its next call."""
        page: Page = self._buffers.take()[0]
        return page

    @property
    def _buffers(self) -> "_Buffers":
        """The calling thread's buffers."""
        if not hasattr(self._threads, "buffers"):
            self._threads.buffers = _Buffers(self._copies, self._page_bytes)
        buffers: _Buffers = self._threads.buffers
        return buffers


class _Buffers:
    """Two pinned buffers of ``rows`` pages that take turns: one is filled while the other one is copied."""

    def __init__(self, copies: DeviceCopies, page_bytes: int) -> None:
        self.rows = max(1, _BUFFER_BYTES // page_bytes)
        self._copies = copies
        self._buffers = [copies.pinned(self.rows * page_bytes).reshape(self.rows, page_bytes) for _ in range(2)]
        self._copied = [copies.mark(), copies.mark()]
        self._turn = 0

    def take(self) -> Page:
        """The buffer whose turn it is, once its last copies are done."""
        self._turn = 1 - self._turn
        self._copied[self._turn]()
        return self._buffers[self._turn]

    def given(self) -> None:
        """Note that the copies of the buffer taken last are submitted."""
        self._copied[self._turn] = self._copies.mark()
