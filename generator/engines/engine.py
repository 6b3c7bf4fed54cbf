"""The engine's interface: what a plan's executor offers beyond streaming."""

from typing import Protocol

from protocol.generation import PrefillCost
from protocol.parts import Generator


class Engine(Generator, Protocol):
    """A generator with a life cycle and a way to measure what prefill costs on it.

    Between ``start`` and ``close`` it streams any number of plans at once. Closing a stream's iterator aborts the
    work behind it within one step of the engine.
    """

    async def start(self) -> None:
        """Load the model; seconds to minutes. Raises ConfigError when the model cannot be loaded as configured."""

    async def close(self) -> None:
        """Abort what runs and give back the device. Idempotent."""

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill of ``new_tokens`` behind ``cached_tokens``, on arbitrary tokens of its own.

        Disturbs what runs at the same time, and is disturbed by it: meant for an idle engine.
        """
