"""A GPU's copies on a CPU, made as late as their contract allows."""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from generator.connector.blocks.cuda_copies import Numbers
from generator.tiers.base import Page


class LateCopies:
    """``CudaCopies`` of memory that the CPU can access. A copy is made when its thread waits for it, not earlier.

    ``log`` has the order of what happened: "fence" and "held" for a fence made and waited for, "submit" and "copy".
    ``before_copying`` runs before the copies that a thread waits for are made.
    ``free`` bytes of the device are not used.
    """

    device_name = "a CPU that takes its time"

    def __init__(self, free: int = 1 << 20) -> None:
        self.log: list[str] = []
        self._free = free
        self.before_copying: Callable[[], None] = lambda: None
        self._threads = threading.local()
        self._pinned: list[range] = []
        self._kept: list[Page] = []
        self._under_way: list[deque[tuple[int, int, int]]] = []

    @property
    def under_way(self) -> int:
        """Copies of all threads that are not made yet."""
        return sum(map(len, self._under_way))

    def submit(self, sources: Numbers, targets: Numbers, sizes: Numbers) -> None:
        self.log.append("submit")
        for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
            assert self._is_pinned(source, size) != self._is_pinned(target, size), "one side is pinned host memory"
            self._queue.append((source, target, size))

    def mark(self) -> Callable[[], None]:
        queue = self._queue
        number = self._threads.made + len(queue)

        def wait() -> None:
            assert self._queue is queue, "another thread waits for this thread's copies"
            if self._threads.made < number:
                self.before_copying()
            while self._threads.made < number:
                source, target, size = queue.popleft()
                ctypes.memmove(target, source, size)
                self._threads.made += 1
                self.log.append("copy")

        return wait

    def fence(self) -> Callable[[], None]:
        self.log.append("fence")
        return lambda: self.log.append("held")

    def enter_thread(self) -> None:
        assert self._queue is not None

    @contextmanager
    def in_order(self) -> Iterator[None]:
        # What runs within it is done at once here, so the copies in front of it are, too.
        self.mark()()
        yield

    def indices(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers)

    def is_pinned(self, memory: Page) -> bool:
        return self._is_pinned(memory.ctypes.data, 1)

    def pinned(self, size: int) -> Page:
        memory = np.full(size, 0xEE, np.uint8)
        self.pin(memory.reshape(1, -1))
        self._kept.append(memory)
        return memory

    def pin(self, memory: Page) -> Callable[[], None]:
        begin = memory.ctypes.data
        pinned = range(begin, begin + len(memory) * memory.strides[0])
        self._pinned.append(pinned)
        return lambda: self._pinned.remove(pinned)

    def free_bytes(self) -> int:
        return self._free

    def new_pages(self, count: int, page_bytes: int) -> torch.Tensor:
        return torch.full((count, page_bytes), 0xCC, dtype=torch.uint8)

    def _is_pinned(self, address: int, size: int) -> bool:
        return any(address in memory and address + size - 1 in memory for memory in self._pinned)

    @property
    def _queue(self) -> deque[tuple[int, int, int]]:
        if not hasattr(self._threads, "queue"):
            self._threads.queue = deque()
            self._threads.made = 0
            self._under_way.append(self._threads.queue)
        return self._threads.queue
