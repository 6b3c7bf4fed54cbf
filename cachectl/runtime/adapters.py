"""Adapters that come and go while the stack runs: all instances serve the same ones."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager, suppress

import structlog

from cachectl.runtime.executor import LiveEngine, LiveInstances
from protocol.errors import (
    Conflict,
    DeadlineExceeded,
    EngineDied,
    EngineNotReady,
    InvalidRequest,
    RagtreeError,
    UnknownModel,
)
from protocol.generation import EngineInfo, ServedAdapter

LOAD_S = 600.0
"""How long an instance may take to download and load an adapter."""

log = structlog.get_logger(__name__)


class Adapters:
    """Has the ``instances`` load and unload adapters.

    All serve the ``configured`` ones, and those that were ``added`` since. ``version`` counts the changes of these.
    Without instances, there are none.
    """

    def __init__(self, instances: LiveInstances | None = None) -> None:
        self._instances = instances
        self.configured: dict[str, ServedAdapter] = {}
        self.added: dict[str, ServedAdapter] = {}
        self.version = 0
        # The names of those that are being loaded or unloaded: instances differ in them meanwhile.
        self._changing: set[str] = set()

    @property
    def served(self) -> dict[str, ServedAdapter]:
        """All adapters, by name."""
        return self.configured | self.added

    def recall(self, configured: Mapping[str, ServedAdapter], added: Mapping[str, ServedAdapter]) -> None:
        """Take over what instances were started with, and what a former controller had added."""
        self.configured = dict(configured)
        self.added = {name: adapter for name, adapter in added.items() if name not in configured}

    async def load(self, name: str, source: str, serving: Callable[[], Set[str]]) -> str:
        """Have the ``serving`` instances load an adapter; return its digest. If one cannot, none serves it.

        Instances that begin to serve meanwhile load it, too. Raises what an instance raises, Conflict for a name that
        is configured or changes, or if they find different files, and EngineNotReady if there is none.
        """
        if name in self.configured:
            raise Conflict(f"The name {name!r} is one of generator.adapters.", "name")
        loaded: dict[str, str] = {}
        with self._change(name):
            try:
                while missing := serving() - loaded.keys():
                    await self._load_at(missing, name, source, loaded, serving)
                if not loaded:
                    raise EngineNotReady("no instance of the generator takes orders now; try again")
                if len(set(loaded.values())) > 1:
                    raise Conflict(f"The instances find different files of {name!r} in {source}.", "source")
            except BaseException:
                if name not in self.added:
                    await self._unload_at(loaded, name)
                raise
            # Nothing has awaited since all that serve had loaded it.
            digest = next(iter(loaded.values()))
            self._set({**self.added, name: ServedAdapter(digest, source)})
        return digest

    async def unload(self, name: str, serving: Callable[[], Set[str]]) -> None:
        """Have the ``serving`` instances unload an adapter. Those that do not answer are told at the next look.

        Raises UnknownModel, and Conflict for an adapter of the configuration or one that changes.
        """
        if name in self.configured:
            raise Conflict(f"The adapter {name!r} is one of generator.adapters: remove it there.", "name")
        with self._change(name):
            if name not in self.added:
                raise UnknownModel(f"No adapter {name!r} is loaded.", "name")
            self.forget(name)
            await self._unload_at(serving(), name)

    def forget(self, name: str) -> None:
        """Serve an adapter no more. Instances that still do are told at the next look."""
        self._set({other: adapter for other, adapter in self.added.items() if other != name})

    def differ(self, info: EngineInfo) -> bool:
        """Whether an instance serves others, except for those that change right now."""
        there, here = _digests(info), {name: adapter.digest for name, adapter in self.added.items()}
        return any(there.get(name) != here.get(name) for name in (there.keys() | here.keys()) - self._changing)

    async def align(self, instance: str, info: EngineInfo) -> dict[str, RagtreeError]:
        """Have an instance serve what all serve. Returns why it cannot, by the adapter's name.

        A Conflict means that there is no place for it yet. Raises EngineDied or EngineNotReady.
        """
        if self._instances is None:
            return {}
        engine, there, failures = self._instances.at(instance), _digests(info), dict[str, RagtreeError]()
        here = {name: adapter for name, adapter in self.added.items() if name not in self._changing}
        # First, because they take places.
        for name, digest in there.items():
            if name not in self._changing and (name not in here or here[name].digest != digest):
                with suppress(UnknownModel):
                    await engine.unload_adapter(name)
        for name, adapter in here.items():
            if there.get(name) == adapter.digest:
                continue
            try:
                if await _loaded(engine, name, adapter.source or "") != adapter.digest:
                    await engine.unload_adapter(name)
                    raise InvalidRequest(f"It finds other files of the adapter {name!r} in {adapter.source}.")
            except (EngineDied, EngineNotReady):
                raise
            except RagtreeError as error:
                failures[name] = error
        return failures

    async def _load_at(
        self, missing: Collection[str], name: str, source: str, loaded: dict[str, str], serving: Callable[[], Set[str]]
    ) -> None:
        """Load an adapter at instances, and note their digests. Raises the first error of one that still serves."""
        if self._instances is None:
            raise EngineNotReady("no instance of the generator takes orders now; try again")
        engines = [self._instances.at(instance) for instance in missing]
        ended = await asyncio.gather(*(_loaded(one, name, source) for one in engines), return_exceptions=True)
        by_instance = dict(zip(missing, ended, strict=True))
        loaded |= {instance: digest for instance, digest in by_instance.items() if isinstance(digest, str)}
        for instance, failure in by_instance.items():
            if isinstance(failure, BaseException) and instance in serving():
                raise failure

    async def _unload_at(self, serving: Collection[str], name: str) -> None:
        if self._instances is None:
            return
        engines = [self._instances.at(instance) for instance in serving]
        ended = await asyncio.gather(*(engine.unload_adapter(name) for engine in engines), return_exceptions=True)
        for failure in ended:
            if failure is not None and not isinstance(failure, UnknownModel):
                log.warning("adapter_not_unloaded", adapter=name, error=str(failure))

    def _set(self, added: dict[str, ServedAdapter]) -> None:
        self.added = added
        self.version += 1

    @contextmanager
    def _change(self, name: str) -> Iterator[None]:
        if name in self._changing:
            raise Conflict(f"The adapter {name!r} is being loaded or unloaded.", "name")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)


async def _loaded(engine: LiveEngine, name: str, source: str) -> str:
    try:
        async with asyncio.timeout(LOAD_S):
            return await engine.load_adapter(name, source)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The adapter {name!r} was not loaded within {LOAD_S:g} s.") from error


def configured_at(info: EngineInfo) -> dict[str, ServedAdapter]:
    """The adapters that an instance was started with, by name."""
    return {name: adapter for name, adapter in info.adapters.items() if adapter.source is None}


async def added_at(instances: LiveInstances, patience_s: float) -> dict[str, ServedAdapter]:
    """What any instance serves that was added, for a controller whose predecessor has left no record of it."""

    async def ask(instance: str) -> Mapping[str, ServedAdapter]:
        try:
            async with asyncio.timeout(patience_s):
                return (await instances.at(instance).info()).adapters
        except (RagtreeError, TimeoutError):
            return {}

    found = await asyncio.gather(*map(ask, sorted(instances.names())))
    return {name: adapter for adapters in found for name, adapter in adapters.items() if adapter.source is not None}


def _digests(info: EngineInfo) -> dict[str, str]:
    """The digests of what was added at an instance, by name."""
    return {name: adapter.digest for name, adapter in info.adapters.items() if adapter.source is not None}
