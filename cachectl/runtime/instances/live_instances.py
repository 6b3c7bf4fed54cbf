"""The generator's instances as objects that can be called."""

from collections.abc import Collection, Mapping
from typing import Protocol

from cachectl.costs.profiling import PrefillProbe
from protocol.parts import Generator


class LiveEngine(Generator, PrefillProbe, Protocol):
    """An instance of the generator that can also be profiled."""


class LiveInstances(Protocol):
    """The instances that run now."""

    def names(self) -> Collection[str]:
        """The names of the instances that take new plans. One that drains or is gone is not among them."""

    def at(self, instance: str) -> LiveEngine:
        """The instance of this name. Its calls raise EngineDied if it is gone."""


class FixedInstances:
    """``LiveInstances`` of engines in this process, by name."""

    def __init__(self, engines: Mapping[str, LiveEngine]) -> None:
        self._engines = engines

    def names(self) -> Collection[str]:
        """The engines' names."""
        return tuple(self._engines)

    def at(self, instance: str) -> LiveEngine:
        """The engine of this name."""
        return self._engines[instance]
