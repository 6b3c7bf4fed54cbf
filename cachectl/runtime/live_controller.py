"""A controller over engines that really run: made of what they say of themselves, and told when they come and go."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

import structlog

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.profiling import PrefillProbe, load_or_measure
from cachectl.runtime.controller import Controller
from cachectl.settings import ControllerSettings
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, Snapshot
from cachectl.tree.tier_manager import Capacities
from protocol.errors import EngineDied, RagtreeError
from protocol.generation import PrefillResult, Sampling, StepBudget
from protocol.kv import KvMemory, LostCopy, Orders, ResidencyReport
from protocol.parts import Generator
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

FALLBACK_PROFILE = "a10g-7b"
"""What prefills are thought to cost where no KV is kept: only the order of waiting queries depends on it then."""

ANSWER_S = 10.0
"""How long an instance may take to say what it is; one that takes longer is asked again at the next look."""

log = structlog.get_logger(__name__)


class LiveEngine(Generator, PrefillProbe, Protocol):
    """An instance as the controller sees it."""


class LiveInstances(Protocol):
    """The instances that there are, as they come and go."""

    def names(self) -> Collection[str]:
        """Those that take new plans now; one that ends, in order or not, is not among them any more."""

    def at(self, instance: str) -> LiveEngine:
        """One of them. Its calls raise EngineDied where it is gone."""


class OneInstance:
    """``LiveInstances`` of a single engine in this process."""

    def __init__(self, name: str, engine: LiveEngine) -> None:
        self._name = name
        self._engine = engine

    def names(self) -> Collection[str]:
        """The one."""
        return (self._name,)

    def at(self, instance: str) -> LiveEngine:  # noqa: ARG002
        """The one."""
        return self._engine


class EngineExecutor:
    """``cachectl.runtime.executor.Executor`` over instances."""

    def __init__(self, instances: LiveInstances) -> None:
        self._instances = instances

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:
        """Have an engine carry out orders."""
        return await self._instances.at(instance).carry_out(orders)

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        """Have an engine prefill a plan's prompt; its one token is nobody's."""
        prefill = None
        async with aclosing(self._instances.at(plan.instance).stream(plan, Sampling(max_tokens=1))) as steps:
            async for step in steps:
                prefill = step.prefill or prefill
        return prefill


class LiveController:
    """Keeps a ``controller`` true to ``instances``.

    They are of one model, and so of one fingerprint; the first one's memory and costs are taken for all. Costs are
    profiled at the engine's first start, and kept below ``profiles``. ``clock`` gives seconds on any monotonic scale;
    ``wall_clock`` those since the epoch, whose microseconds number what is handed out: so stamps rise across restarts
    of the controller, too.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instances: LiveInstances,
        profiles: Path,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._instances = instances
        self._profiles = profiles
        self._clock = clock
        self._wall_clock = wall_clock
        self._controller: Controller | None = None
        self._fingerprint: str | None = None
        self._refused: set[str] = set()

    @property
    def controller(self) -> Controller:
        """The controller, once it is started."""
        assert self._controller is not None, "the controller was not started"
        return self._controller

    async def start(self, progress: Callable[[int, int], None], snapshot: Snapshot = EMPTY_SNAPSHOT) -> None:
        """Make the controller over the instances that there are, and over what their tiers hold of former lives.

        ``snapshot`` is what a former controller remembered. One instance must be ready. ``progress`` hears probes
        done and to do where the engine is new. Raises EngineDied where there is no instance, ConfigError for an engine
        that cannot be profiled, and what the engine raises.
        """
        first = min(self._instances.names(), default=None)
        if first is None:
            raise EngineDied("no instance of the generator is there")
        engine = self._instances.at(first)
        info = await engine.info()
        memory = info.kv
        if memory is None:
            # vLLM's own cache is all that there is, and nobody here knows what it holds: so it orders what waits.
            controller = self._new(first, DeviceProfile.shipped(FALLBACK_PROFILE), step=info.step)
            await controller.add_instance(first, "", ())
        else:
            profile = await load_or_measure(engine, memory, info, self._profiles, progress)
            reports = await engine.residency()
            controller = self._new(first, profile, memory, reports, info.step)
            controller.shared = memory.shared
            controller.recall(snapshot)
            self._fingerprint = memory.fingerprint
            await controller.add_instance(first, memory.boot, reports)
        self._controller = controller
        await self.follow()

    async def follow(self) -> bool:
        """Look which instances have come, gone or restarted since the last look, and tell the controller; whether any.

        One that does not answer is looked at again the next time.
        """
        here = set(self._instances.names())
        changed = False
        for gone in self.controller.boots.keys() - here - self.controller.retired:
            log.info("an instance takes no more plans", instance=gone)
            await self.controller.retire_instance(gone)
            changed = True
        changes = await asyncio.gather(*(self._look(instance) for instance in sorted(here - self._refused)))
        self._refused &= here
        return changed or any(changes)

    async def _look(self, instance: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._look_at(instance)
        except (RagtreeError, TimeoutError) as error:
            log.debug("an instance does not answer", instance=instance, error=str(error))
        except Exception:
            # Which is none of the others' fault.
            log.exception("an instance could not be looked at", instance=instance)
        return False

    async def _look_at(self, instance: str) -> bool:
        engine = self._instances.at(instance)
        memory = (await engine.info()).kv
        boot = memory.boot if memory is not None else ""
        if self.controller.boots.get(instance) == boot:
            if instance not in self.controller.retired:
                return False
            log.info("an instance takes plans again", instance=instance)
            await self.controller.reinstate_instance(instance)
            return True
        if (memory.fingerprint if memory is not None else None) != self._fingerprint:
            log.error("an instance serves another model or layout, and gets no plans", instance=instance)
            self._refused.add(instance)
            if instance in self.controller.boots:
                await self.controller.retire_instance(instance)
            return False
        reports = await engine.residency() if memory is not None else ()
        await self._take(instance, boot, memory.shared if memory is not None else "", reports)
        return True

    async def _take(self, instance: str, boot: str, shared: str, reports: Sequence[ResidencyReport]) -> None:
        """Have the controller take an instance on that came, or came up anew."""
        others = self.controller.sharing - {instance}
        if shared != self.controller.shared and not others:
            # What was shared is gone with the last that reached it.
            await self.controller.lose_shared()
            self.controller.shared = shared
        isolated = shared != self.controller.shared
        # While others reach what is shared, the tree knows best what is there.
        news = [report for report in reports if report.tier is Tier.GPU or not (others or isolated)]
        if instance not in self.controller.boots:
            log.info("an instance takes plans", instance=instance)
            await self.controller.add_instance(instance, boot, news, isolated)
        else:
            log.info("an instance has restarted", instance=instance)
            # Before its plans are ended: what cannot be restored must not end those of every second to come.
            self.controller.boots[instance] = boot
            await self.controller.restart_instance(instance, news, isolated)

    def _new(
        self,
        instance: str,
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
            [instance],
            self._clock,
            profile,
            Capacities(*(count * page for count in pages)),
            page_tokens=page,
            fingerprint=memory.fingerprint if memory is not None else "",
            first_stamp=max(int(self._wall_clock() * 1e6), *stamps, 0) + 1,
            executor=EngineExecutor(self._instances),
            step=step,
            wall_clock=self._wall_clock,
        )
