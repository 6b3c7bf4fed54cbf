"""The engines of a benchmark as a controller's instances."""

from collections.abc import Collection, Mapping

from cachectl.runtime.executor import LiveEngine


class FixedInstances:
    """``LiveInstances`` of engines in this process, by name. Those of ``kv_generators`` only generate KV."""

    def __init__(self, engines: Mapping[str, LiveEngine], kv_generators: Collection[str] = ()) -> None:
        self._engines = engines
        self._kv_generators = kv_generators

    def names(self) -> Collection[str]:
        """The engines' names."""
        return tuple(self._engines)

    def kv_generators(self) -> Collection[str]:
        """The names of those that only generate KV."""
        return self._kv_generators

    def at(self, instance: str) -> LiveEngine:
        """The engine of this name."""
        return self._engines[instance]
