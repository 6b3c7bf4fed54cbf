"""Whether the other parts can serve, known beforehand.

While a replica restarts, a call to it queues in silence for as long as that takes. So a watcher asks at intervals, and
a query that would have to wait is refused at once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

import structlog

from protocol.errors import EngineDied, EngineNotReady, RagtreeError, RetrieverNotReady, Unavailable
from protocol.generation import EngineInfo
from protocol.parts import Controller, Generator, Retriever
from protocol.repeating import repeated

log = structlog.get_logger(__name__)


class Readiness:
    """What is known of the other parts since the last look. Intervals and timeouts are seconds."""

    PARTS = ("controller", "engine", "retriever")

    def __init__(
        self, retriever: Retriever, controller: Controller, generator: Generator, interval_s: float, timeout_s: float
    ) -> None:
        self._retriever = retriever
        self._controller = controller
        self._generator = generator
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._engine: EngineInfo | None = None
        # A look out of turn.
        self._looking: asyncio.Task[None] | None = None
        self._missing: dict[str, RagtreeError] = {
            "engine": EngineNotReady("The engine is starting."),
            "retriever": RetrieverNotReady("The retriever is starting."),
            "controller": Unavailable("The controller is starting."),
        }

    def engine(self) -> EngineInfo:
        """What the engine serves. Raises EngineNotReady or EngineDied where it cannot be asked now."""
        if "engine" in self._missing:
            raise self._missing["engine"]
        assert self._engine is not None
        return self._engine

    def require_parts(self) -> None:
        """Return where the parts other than the engine can serve. Raises RetrieverNotReady or Unavailable."""
        for part, error in self._missing.items():
            if part != "engine":
                raise error

    def missing(self) -> dict[str, RagtreeError]:
        """The parts that cannot serve, by name, each with the reason; empty when all can."""
        return dict(sorted(self._missing.items()))

    def heard(self, error: RagtreeError) -> None:
        """Take a query's failure as news: look at once whether there is an engine left."""
        if isinstance(error, EngineDied) and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_at_engine())

    async def look(self) -> None:
        """Ask all parts now."""
        before = self.missing()
        await asyncio.gather(
            self._look_at_engine(),
            self._look_at("retriever", self._retriever.ready(), RetrieverNotReady("The retriever does not answer.")),
            self._look_at("controller", self._controller.ready(), Unavailable("The controller does not answer.")),
        )
        after = self.missing()
        if after.keys() != before.keys():
            log.info("readiness", missing={part: error.message for part, error in after.items()})

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look once, and then at every interval for as long as the context is open."""
        await self.look()
        try:
            async with repeated(self.look, self._interval_s):
                yield
        finally:
            if self._looking is not None:
                self._looking.cancel()

    async def _look_at_engine(self) -> None:
        await self._look_at("engine", self._ask_engine(), EngineNotReady("The engine does not answer."))

    async def _ask_engine(self) -> None:
        await self._generator.ready()
        self._engine = await self._generator.info()

    async def _look_at(self, part: str, asked: Awaitable[None], silent: Unavailable) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await asked
        except RagtreeError as error:
            self._missing[part] = error
        except Exception as error:
            log.warning("part_unreachable", part=part, error=repr(error))
            self._missing[part] = silent
        else:
            self._missing.pop(part, None)
