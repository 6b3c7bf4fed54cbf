"""All instances of the engine, as the controller reaches them: generators and KV generators."""

from collections.abc import Collection
from contextlib import suppress

from protocol.errors import Unavailable
from services.serve.handles import GeneratorHandle


class ServedInstances:
    """``LiveInstances`` over the handle of the generator and, if there are any, that of the KV generators."""

    def __init__(self, generator: GeneratorHandle, kv_generator: GeneratorHandle | None = None) -> None:
        self._generator = generator
        self._kv_generator = kv_generator

    def names(self) -> Collection[str]:
        """Return the instances that take plans now."""
        return {*self._generator.names(), *self.kv_generators()}

    def kv_generators(self) -> Collection[str]:
        """Return those of them that only generate KV."""
        return self._kv_generator.names() if self._kv_generator is not None else ()

    def at(self, instance: str) -> GeneratorHandle:
        """Return the handle of one instance. Its calls raise EngineDied if the instance is gone or draining."""
        if self._kv_generator is not None and instance in self._kv_generator.names():
            return self._kv_generator.at(instance)
        return self._generator.at(instance)

    async def ready(self) -> None:
        """Return when a generator can execute plans. KV generators may come later, and go."""
        await self._generator.ready()
        if self._kv_generator is not None:
            # Serve tells a handle about its replicas from the first call on.
            with suppress(Unavailable):
                await self._kv_generator.ready()
