"""Copies between host memory and a GPU, as CUDA makes them. Only a machine with a GPU runs ``CudaCopies``."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeAlias

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from generator.tiers.base import Page

log = structlog.get_logger(__name__)

_MOST_COPIES = 1024
"""Copies of one batch. The driver's batches have failed with tens of thousands (vLLM issue 49276)."""
_MOST_BYTES = 64 << 30
"""Drivers refuse to register more host memory at once."""

Numbers: TypeAlias = NDArray[np.int64]


class CudaCopies:
    """Copies of one GPU, by address. Those of one thread are made in order, on its stream, beside the engine's work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = threading.local()
        self._start = _batch_copy()

    @property
    def device_name(self) -> str:
        """The GPU's model name."""
        return str(torch.cuda.get_device_name(self._device))

    def submit(self, sources: Numbers, targets: Numbers, sizes: Numbers) -> None:
        """Start copies between host memory and the device: ``sizes`` bytes each.

        The host memory must be pinned, and must stay until the copies are done.
        """
        with torch.cuda.stream(self._stream):
            for begin in range(0, len(sizes), _MOST_COPIES):
                part = slice(begin, begin + _MOST_COPIES)
                self._start(*(torch.from_numpy(numbers[part]) for numbers in (sources, targets, sizes)))

    def mark(self) -> Callable[[], None]:
        """A function that waits, without using the CPU, for the copies that the calling thread has started so far."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        synchronize: Callable[[], None] = event.synchronize
        return synchronize

    def fence(self) -> Callable[[], None]:
        """A function that holds back the calling thread's later copies until the engine's work so far is done."""
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(torch.cuda.current_stream(self._device))
        return lambda: self._stream.wait_event(computed)

    def join(self) -> Callable[[], bool]:
        """Hold back the engine's later work until the copies of its thread, which calls this, are done.

        Returns a function that says whether they are.
        """
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(self._stream)
        torch.cuda.current_stream(self._device).wait_event(copied)
        query: Callable[[], bool] = copied.query
        return query

    def enter_thread(self) -> None:
        """Let all that the calling thread does on the device run in order with its copies."""
        torch.cuda.set_device(self._device)
        torch.cuda.set_stream(self._stream)

    def in_order(self) -> AbstractContextManager[object]:
        """Within it, what the calling thread does on the device runs in order with its copies, on any thread."""
        return torch.cuda.stream(self._stream)

    def indices(self, numbers: Sequence[int]) -> torch.Tensor:
        """Numbers as a tensor on the GPU, copied on the current stream.

        From memory that is not pinned, the copy would wait for all that is before it on the stream: for the step
        before, on the engine's thread. The pinned memory is torch's own, which is not handed out again before a copy
        that ``non_blocking`` has begun from it is done, although nothing refers to it here any more.
        """
        return torch.tensor(numbers, dtype=torch.int64, pin_memory=True).to(self._device, non_blocking=True)

    def is_pinned(self, memory: Page) -> bool:
        """Whether host memory is pinned."""
        return torch.from_numpy(memory).is_pinned()

    def pinned(self, size: int) -> Page:
        """New pinned memory of ``size`` bytes."""
        memory: Page = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return memory

    def pin(self, memory: Page) -> Callable[[], None]:
        """Pin host memory. Returns the function that unpins it. If that fails, a warning is logged."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return register(runtime, self._clear_error, memory)

    def free_bytes(self) -> int:
        """The device's memory that nothing uses."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)

    def new_pages(self, count: int, page_bytes: int) -> torch.Tensor | None:
        """New memory on the device, shape [count, page_bytes] and dtype uint8; None if it has not enough.

        The engine's thread calls this. Other threads wait for a fence made after it before they copy there.
        """
        try:
            return torch.empty((count, page_bytes), dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:
            return None

    @property
    def _stream(self) -> torch.cuda.Stream:
        if not hasattr(self._threads, "stream"):
            self._threads.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._threads.stream
        return stream

    def _clear_error(self) -> None:
        """Let a kernel fail with CUDA's last error, which takes it back. Otherwise the engine's next kernel would."""
        with suppress(RuntimeError):
            torch.ones(1, device=self._device).add_(1)


def register(runtime: Any, clear_error: Callable[[], None], memory: Page) -> Callable[[], None]:  # noqa: ANN401
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


def _batch_copy() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """What starts copies on the current stream: vLLM's batch of copies, or the driver's single ones without vLLM."""
    try:
        from vllm._custom_ops import swap_blocks_batch
    except ImportError:
        return _copy_one_by_one
    there = hasattr(torch.ops._C_cache_ops, swap_blocks_batch.__name__)
    return swap_blocks_batch if there else _copy_one_by_one


def _copy_one_by_one(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        error = driver.cuMemcpyAsync(ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size), stream)
        if error:
            raise RuntimeError(f"cuMemcpyAsync failed with error {error}")
