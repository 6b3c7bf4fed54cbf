"""Adapters that come and go while the stack runs: all instances serve the same ones."""

import asyncio
from collections.abc import Collection, Mapping

import structlog

from cachectl.runtime.executor import LiveInstances
from protocol.errors import Conflict, EngineNotReady, RagtreeError, UnknownModel
from protocol.generation import EngineInfo

log = structlog.get_logger(__name__)


class Adapters:
    """Has the ``instances`` load and unload adapters, one change at a time.

    ``added`` are those that all serve beside the configured ones: their folders or Hugging Face ids by name. Without
    instances, there are none.
    """

    def __init__(self, instances: LiveInstances | None = None) -> None:
        self._instances = instances
        self._changing = asyncio.Lock()
        self.added: dict[str, str] = {}

    def recall(self, added: Mapping[str, str]) -> None:
        """Take over those of a former controller."""
        self.added = dict(added)

    async def load(self, name: str, source: str, serving: Collection[str]) -> str:
        """Have the ``serving`` instances load an adapter; return its digest. If one cannot, none serves it.

        Raises what an instance raises, Conflict if they find different files, and EngineNotReady if there is none.
        """
        async with self._changing:
            if self._instances is None or not serving:
                raise EngineNotReady("no instance of the generator takes orders now; try again")
            engines = [self._instances.at(instance) for instance in serving]
            ended = await asyncio.gather(
                *(engine.load_adapter(name, source) for engine in engines), return_exceptions=True
            )
            failure = next((one for one in ended if isinstance(one, BaseException)), None)
            if failure is None and len(set(ended)) > 1:
                failure = Conflict(f"The instances find different files of {name!r} in {source}.", "source")
            if failure is not None:
                if name not in self.added:
                    loaded = [engine for engine, one in zip(engines, ended, strict=True) if isinstance(one, str)]
                    await asyncio.gather(*(engine.unload_adapter(name) for engine in loaded), return_exceptions=True)
                raise failure
            self.added[name] = source
            return str(ended[0])

    async def unload(self, name: str, serving: Collection[str]) -> None:
        """Have the ``serving`` instances unload an adapter. Those that do not answer are told at the next look.

        Raises UnknownModel, and Conflict for an adapter of the configuration.
        """
        async with self._changing:
            if name not in self.added and (self._instances is None or not serving):
                raise UnknownModel(f"No adapter {name!r} is loaded.", "name")
            ended = (
                []
                if self._instances is None
                else await asyncio.gather(
                    *(self._instances.at(instance).unload_adapter(name) for instance in serving), return_exceptions=True
                )
            )
            failures = [one for one in ended if one is not None]
            if name not in self.added:
                if failures:
                    raise failures[0]
                return
            del self.added[name]
            for failure in failures:
                if not isinstance(failure, UnknownModel):
                    log.warning("adapter_not_unloaded", adapter=name, error=str(failure))

    def differ(self, info: EngineInfo) -> bool:
        """Whether an instance serves others, and no change is under way that would explain it."""
        return info.added != self.added and not self._changing.locked()

    async def align(self, instance: str, info: EngineInfo) -> None:
        """Have an instance serve what all serve. Raises what it raises if it cannot."""
        if self._instances is None:
            return
        engine = self._instances.at(instance)
        async with self._changing:
            for name, source in info.added.items():
                if self.added.get(name) != source:
                    await engine.unload_adapter(name)
            for name, source in self.added.items():
                if info.added.get(name) != source:
                    await engine.load_adapter(name, source)


def configured(info: EngineInfo) -> dict[str, str]:
    """The digests of the adapters that an instance was started with, by name."""
    return {name: digest for name, digest in info.adapters.items() if name not in info.added}


async def added_at(instances: LiveInstances, patience_s: float) -> dict[str, str]:
    """What any instance serves that was added, for a controller whose predecessor has left no record of it."""

    async def ask(instance: str) -> Mapping[str, str]:
        try:
            async with asyncio.timeout(patience_s):
                return (await instances.at(instance).info()).added
        except (RagtreeError, TimeoutError):
            return {}

    found = await asyncio.gather(*map(ask, sorted(instances.names())))
    return {name: source for added in found for name, source in added.items()}
