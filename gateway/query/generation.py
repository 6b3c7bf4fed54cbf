"""A query's answer in the making: its turn, and its steps, on another instance where the first one is lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType

import msgspec
import structlog

from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.guess import Guess
from gateway.query.lease import Lease, Releases
from gateway.query.tracing import QueryTrace
from gateway.settings import GatewaySettings
from gateway.wire.timeline import Timeline
from protocol.errors import EngineDied
from protocol.generation import GenerationStep, Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan

log = structlog.get_logger(__name__)


class Generation:
    """Waits for a query's turn and streams, begun once more elsewhere where its instance is lost before a first step.

    A context manager: what it holds is given back at the end of its block, as ``Lease`` says. ``on_turn`` hears of each
    plan that it goes by.
    """

    def __init__(
        self,
        query_id: str,
        parts: Parts,
        releases: Releases,
        deadline: Deadline,
        settings: GatewaySettings,
        metrics: GatewayMetrics,
        trace: QueryTrace,
        timeline: Timeline,
        on_turn: Callable[[PrefillPlan], None],
    ) -> None:
        self._parts = parts
        self._releases = releases
        self._deadline = deadline
        self._settings = settings
        self._metrics = metrics
        self._trace = trace
        self._timeline = timeline
        # When its turn was asked for, and then the engine.
        self._asked_ms = self._begun_ms = 0.0
        self._on_turn = on_turn
        self.lease = Lease(query_id, parts.controller, releases)
        # The lease of the plan that it goes by: its own, or a guess's, or that of the second try.
        self._held = self.lease
        self._turn: asyncio.Task[PrefillPlan] | None = None
        self._guess: Guess | None = None

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)
        self.lease.__exit__(kind, error, trace)

    def take_over(self, guess: Guess) -> None:
        """Go on with a guess that was confirmed: its turn was long ago."""
        self._guess = guess
        self._held = guess.lease

    async def ask(self, asked: AdmissionRequest) -> None:
        """Ask for a turn, and wait ``hold_back_s`` for it: until then a refusal is raised here."""
        self._ask(asked)
        assert self._turn is not None
        await asyncio.wait({self._turn}, timeout=self._settings.hold_back_s)
        if self._turn.done():
            self._turn.result()

    async def steps(
        self, asked: AdmissionRequest, sampling: Sampling
    ) -> AsyncGenerator[tuple[PrefillPlan, GenerationStep]]:
        """The steps, each with the plan that it comes of. ``asked`` is what a second turn is asked for with.

        Raises what admission and the engine raise.
        """
        begun = False
        plan = await self._plan()
        try:
            async for step in self._stream(plan, sampling):
                begun = True
                yield plan, step
        except EngineDied as error:
            if begun:
                raise
            lost = error
        else:
            return
        plan = await self._begin_again(asked, plan, lost)
        async for step in self._stream(plan, sampling):
            yield plan, step

    def completed(self) -> None:
        """Note that the answer came to its end."""
        self._held.completed()

    def _ask(self, asked: AdmissionRequest) -> None:
        self._asked_ms = self._timeline.now_ms()
        self._turn = self._held.admission(self._parts.controller.admit(asked))

    async def _plan(self) -> PrefillPlan:
        if self._guess is not None:
            plan = self._guess.plan
            self._begun_ms = self._guess.began_ms
        else:
            assert self._turn is not None, "nobody asked for a turn"
            plan = await self._deadline.wait(self._turn)
            self._timeline.queued(self._asked_ms, plan.overtaken)
            self._begun_ms = self._timeline.now_ms()
        self._on_turn(plan)
        return plan

    async def _stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep]:
        async for step in self._steps(plan, sampling):
            if step.prefill is not None:
                came_ms = self._timeline.now_ms() if self._guess is None else self._guess.prefilled_ms
                self._timeline.prefilled(step.prefill, self._begun_ms, came_ms)
            yield step

    def _steps(self, plan: PrefillPlan, sampling: Sampling) -> AsyncIterator[GenerationStep]:
        if self._guess is not None:
            return self._guess.steps()
        stream = self._parts.generator.stream(plan, sampling)
        within_s, chat = self._settings.first_step_timeout_s, self._trace.chat(plan)
        return self._held.steps(stream, self._deadline, within_s, chat)

    async def _begin_again(self, asked: AdmissionRequest, lost: PrefillPlan, error: EngineDied) -> PrefillPlan:
        """A turn on another instance; nothing has left yet that rests on the first. Raises what admission raises."""
        self._guess = None
        self._held.__exit__(type(error), error, None)
        again = msgspec.structs.replace(asked, query_id=f"{asked.query_id}~again", avoid=(lost.instance,))
        self._held = Lease(again.query_id, self._parts.controller, self._releases)
        self._ask(again)
        plan = await self._plan()
        log.info("begun_again", query_id=asked.query_id, lost=lost.instance, on=plan.instance, reason=error.message)
        self._metrics.begun_again()
        return plan
