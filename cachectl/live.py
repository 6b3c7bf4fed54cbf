"""A controller over an engine that really runs: made of what the engine says of itself, and told when it restarts."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from cachectl.controller import Controller
from cachectl.cost import DeviceProfile
from cachectl.placement import Capacities
from cachectl.profiling import PrefillProbe, load_or_measure
from cachectl.settings import ControllerSettings
from protocol.generation import PrefillResult, Sampling, StepBudget
from protocol.kv import KvMemory, LostCopy, Orders, ResidencyReport
from protocol.parts import Generator
from protocol.plans import PrefillPlan

FALLBACK_PROFILE = "a10g-7b"
"""What prefills are thought to cost where no KV is kept: only the order of waiting queries depends on it then."""


class LiveEngine(Generator, PrefillProbe, Protocol):
    """An instance as the controller sees it."""


class EngineHands:
    """``cachectl.hands.Hands`` over the one instance that there is."""

    def __init__(self, engine: Generator) -> None:
        self._engine = engine

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:  # noqa: ARG002
        """Have the engine carry out orders."""
        return await self._engine.carry_out(orders)

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        """Have the engine prefill a plan's prompt; its one token is nobody's."""
        prefill = None
        async with aclosing(self._engine.stream(plan, Sampling(max_tokens=1))) as steps:
            async for step in steps:
                prefill = step.prefill or prefill
        return prefill


class LiveController:
    """Keeps a ``controller`` true to one instance, ``engine``.

    Costs are profiled at the engine's first start, and kept below ``profiles``. ``clock`` gives seconds on any
    monotonic scale; ``wall_clock`` those since the epoch, whose microseconds number what is handed out: so stamps rise
    across restarts of the controller, too.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instance: str,
        engine: LiveEngine,
        profiles: Path,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._engine = engine
        self._profiles = profiles
        self._clock = clock
        self._wall_clock = wall_clock
        self._controller: Controller | None = None

    @property
    def controller(self) -> Controller:
        """The controller, once it is started."""
        assert self._controller is not None, "the controller was not started"
        return self._controller

    async def start(self, progress: Callable[[int, int], None]) -> None:
        """Make the controller, over what the tiers still hold of former lives.

        The engine must be ready. ``progress`` hears probes done and to do where the engine is new. Raises ConfigError
        for an engine that cannot be profiled, and what the engine raises.
        """
        info = await self._engine.info()
        memory = info.kv
        if memory is None:
            # vLLM's own cache is all that there is, and nobody here knows what it holds: so it orders what waits.
            self._controller = self._new(DeviceProfile.shipped(FALLBACK_PROFILE), step=info.step)
            return
        profile = await load_or_measure(self._engine, memory, info, self._profiles, progress)
        reports = await self._engine.residency()
        controller = self._new(profile, memory, reports, info.step)
        await controller.restore(reports)
        controller.boot = memory.boot
        self._controller = controller

    async def follow(self) -> bool:
        """Look whether the engine has restarted since the last look, and tell the controller; whether it had.

        Raises what the engine raises where it is not there: then nothing has changed.
        """
        memory = (await self._engine.info()).kv
        if memory is None or memory.boot == self.controller.boot:
            return False
        reports = await self._engine.residency()
        # Before its plans are ended: what cannot be restored must not end those of every second to come.
        self.controller.boot = memory.boot
        await self.controller.restart_instance(self._instance, reports)
        return True

    def _new(
        self,
        profile: DeviceProfile,
        memory: KvMemory | None = None,
        reports: Sequence[ResidencyReport] = (),
        step: StepBudget | None = None,
    ) -> Controller:
        page = memory.page_tokens if memory is not None else 1
        pages = (memory.gpu_pages, memory.host_pages, memory.disk_pages) if memory is not None else (0, 0, 0)
        stamps = [held.pages.stamp for report in reports for held in report.nodes if held.pages is not None]
        return Controller(
            self._settings,
            [self._instance],
            self._clock,
            profile,
            Capacities(*(count * page for count in pages)),
            page_tokens=page,
            fingerprint=memory.fingerprint if memory is not None else "",
            first_stamp=max(int(self._wall_clock() * 1e6), *stamps, 0) + 1,
            hands=EngineHands(self._engine),
            step=step,
            wall_clock=self._wall_clock,
        )
