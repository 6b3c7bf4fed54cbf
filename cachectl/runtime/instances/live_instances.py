"""The generator's instances as objects that can be called."""

from collections.abc import Collection
from typing import Protocol

from cachectl.costs.profiling import PrefillProbe
from protocol.parts import Generator


class LiveEngine(Generator, PrefillProbe, Protocol):
    """An instance of the generator that can also be profiled."""


class LiveInstances(Protocol):
    """The instances that run now."""

    def names(self) -> Collection[str]:
        """The names of the instances that take new plans. One that drains or is gone is not among them."""

    def kv_generators(self) -> Collection[str]:
        """The names of those among them that only generate KV, for queries that wait for the others."""

    def at(self, instance: str) -> LiveEngine:
        """The instance of this name. Its calls raise EngineDied if it is gone."""
