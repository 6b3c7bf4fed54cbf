"""What copies between host memory and a device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from generator.tiers.base import Page

Numbers: TypeAlias = NDArray[np.int64]


class DeviceCopies(Protocol):
    """A device's copies, by address. Those of one thread are made in order, beside the engine's own work."""

    @property
    def device_name(self) -> str:
        """The device's model name."""

    def submit(self, sources: Numbers, targets: Numbers, sizes: Numbers) -> None:
        """Start copies between host memory and the device: ``sizes`` bytes each.

        The host memory must be pinned, and must stay until the copies are done.
        """

    def mark(self) -> Callable[[], None]:
        """A function that waits until the copies that the calling thread has started so far are done."""

    def fence(self) -> Callable[[], None]:
        """A function that holds back the calling thread's later copies until the engine's work so far is done."""

    def enter_thread(self) -> None:
        """Let what else the calling thread does on the device run in order with its copies."""

    def in_order(self) -> AbstractContextManager[object]:
        """Within it, what else the calling thread does on the device runs in order with its copies, on any thread."""

    def indices(self, numbers: Sequence[int]) -> torch.Tensor:
        """Numbers as a tensor on the device, for what comes next on the current stream. Nothing is waited for."""

    def is_pinned(self, memory: Page) -> bool:
        """Whether host memory is pinned."""

    def pinned(self, size: int) -> Page:
        """New pinned memory of ``size`` bytes."""

    def pin(self, memory: Page) -> Callable[[], None]:
        """Pin host memory. Returns the function that unpins it. If that fails, a warning is logged."""

    def free_bytes(self) -> int:
        """The device's memory that nothing uses."""

    def new_pages(self, count: int, page_bytes: int) -> torch.Tensor | None:
        """New memory on the device, shape [count, page_bytes] and dtype uint8; None if it has not enough.

        The engine's thread calls this. Other threads wait for a fence made after it before they copy there.
        """
