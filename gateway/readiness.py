"""Readiness of the other parts, checked in the background.

A call to a replica that restarts waits until the replica is back. Because the gateway knows beforehand that a part is
missing, it can refuse a query at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import structlog
from msgspec.structs import replace

from protocol.errors import EngineDied, EngineFailed, EngineNotReady, RagtreeError, RetrieverNotReady, Unavailable
from protocol.generation import EngineInfo, ServedAdapter
from protocol.parts import Parts
from protocol.repeating import repeated

log = structlog.get_logger(__name__)

_OFTENER = 5
"""A missing part is checked this many times as often, since queries are refused until it is known to be back."""


class Readiness:
    """Readiness of the other parts as of the last check. Intervals and timeouts are in seconds."""

    PARTS = ("controller", "engine", "retriever")

    def __init__(self, parts: Parts, interval_s: float, timeout_s: float) -> None:
        self._generator, self._controller = parts.generator, parts.controller
        # Each part's question whether it can serve, and the error if it does not answer.
        self._questions: dict[str, tuple[Callable[[], Awaitable[None]], RagtreeError]] = {
            "controller": (self._ask_controller, Unavailable("The controller does not answer.")),
            "engine": (self._ask_engine, EngineNotReady("The engine does not answer.")),
            "retriever": (parts.retriever.ready, RetrieverNotReady("The retriever does not answer.")),
        }
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._engine: EngineInfo | None = None
        # As the controller knows them: an instance that is asked may not serve yet.
        self._adapters: dict[str, ServedAdapter] | None = None
        # A check between two intervals.
        self._extra_check: asyncio.Task[None] | None = None
        self._whole_check: asyncio.Task[None] | None = None
        self._missing: dict[str, RagtreeError] = {
            "engine": EngineNotReady("The engine is starting."),
            "retriever": RetrieverNotReady("The retriever is starting."),
            "controller": Unavailable("The controller is starting."),
        }
        # The parts that the last line of the log calls missing.
        self._logged = set(self._missing)

    def engine(self) -> EngineInfo:
        """The engine's model. Raises EngineNotReady or EngineDied if the engine cannot serve now."""
        if "engine" in self._missing:
            raise self._missing["engine"]
        assert self._engine is not None
        return self._engine if self._adapters is None else replace(self._engine, adapters=self._adapters)

    def require_parts(self) -> None:
        """Check that all parts but the engine can serve. Raises RetrieverNotReady or Unavailable."""
        for part, error in self._missing.items():
            if part != "engine":
                raise error

    def require_retriever(self) -> None:
        """Check that the retriever can serve. Raises RetrieverNotReady or Unavailable."""
        if "retriever" in self._missing:
            raise self._missing["retriever"]

    def missing(self) -> dict[str, RagtreeError]:
        """The reason for each part that cannot serve, by name. Empty if all parts can."""
        return dict(sorted(self._missing.items()))

    def on_query_error(self, error: RagtreeError) -> None:
        """Check the engine at once if a query failed because its engine died."""
        if isinstance(error, (EngineDied, EngineFailed)) and (self._extra_check is None or self._extra_check.done()):
            self._extra_check = asyncio.create_task(self._check("engine"))

    async def ask_adapters(self) -> None:
        """Ask which adapters are served now. Raises Unavailable."""
        self._adapters = await self._controller.served_adapters()

    async def check(self) -> None:
        """Check all parts now. Anyone who asks meanwhile waits for the same check."""
        if self._whole_check is None or self._whole_check.done():
            self._whole_check = asyncio.create_task(self._check_all())
        await asyncio.shield(self._whole_check)

    async def _check_all(self) -> None:
        await asyncio.gather(*map(self._check, self.PARTS))
        self._log_change()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Check now, and then each part by itself while the context is open: one may be slow to say that it is missing.

        A part is checked at every interval, and a missing one sooner.
        """
        await self.check()
        try:
            async with contextlib.AsyncExitStack() as watches:
                for part in self.PARTS:
                    watch = repeated(partial(self._watch, part), partial(self._pause_s, part))
                    await watches.enter_async_context(watch)
                yield
        finally:
            for check in (self._extra_check, self._whole_check):
                if check is not None:
                    check.cancel()

    def _pause_s(self, part: str) -> float:
        return self._interval_s / (_OFTENER if part in self._missing else 1)

    async def _watch(self, part: str) -> None:
        await self._check(part)
        self._log_change()

    def _log_change(self) -> None:
        if self._missing.keys() != self._logged:
            self._logged = set(self._missing)
            log.info("readiness", missing={part: error.message for part, error in self.missing().items()})

    async def _ask_controller(self) -> None:
        await self._controller.ready()
        await self.ask_adapters()

    async def _ask_engine(self) -> None:
        await self._generator.ready()
        self._engine = await self._generator.info()

    async def _check(self, part: str) -> None:
        ask, silent = self._questions[part]
        try:
            async with asyncio.timeout(self._timeout_s):
                await ask()
        except RagtreeError as error:
            self._missing[part] = error
        except Exception as error:
            log.warning("part_unreachable", part=part, error=repr(error))
            self._missing[part] = silent
        else:
            self._missing.pop(part, None)
