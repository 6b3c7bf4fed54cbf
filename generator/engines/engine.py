"""The interface of engines."""

from typing import Protocol

from protocol.generation import PrefillCost
from protocol.parts import Generator


class Engine(Generator, Protocol):
    """A generator that can be started, closed and measured.

    Between ``start`` and ``close`` it streams any number of plans at once. Closing a stream's iterator aborts its work
    within one step of the engine.
    """

    async def start(self) -> None:
        """Load the model, which takes seconds to minutes. Raises ConfigError if it cannot be loaded as configured."""

    async def close(self) -> None:
        """Abort what runs and free the device. Idempotent."""

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill of ``new_tokens`` arbitrary tokens after ``cached_tokens``.

        Meant for an idle engine: it competes with running streams.
        """
