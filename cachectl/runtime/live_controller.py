"""Builds a controller over running instances, and tells it when instances come, restart and go."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from msgspec.structs import replace

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.profiling import load_or_measure
from cachectl.runtime.adapters import Adapters, added_at, configured_at
from cachectl.runtime.composing import Gate, GateFolder
from cachectl.runtime.controller import Controller, Engines
from cachectl.runtime.executor import EngineExecutor, LiveEngine, LiveInstances
from cachectl.runtime.instance_registry import DeletionFence, disk_of, kv_difference
from cachectl.settings import ControllerSettings
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, Snapshot
from protocol.errors import Conflict, EngineDied, RagtreeError
from protocol.generation import ComposingInfo, EngineInfo, StepBudget
from protocol.kv import NO_PEERS, KvMemory, Orders, ResidencyReport
from protocol.tiers import Tier

FALLBACK_PROFILE = "a10g-7b"
"""The cost profile where no KV is kept. Only the order of waiting queries depends on it then."""

ANSWER_S = 10.0
"""How long an instance may take to describe itself. One that takes longer is asked again at the next look."""

ALIGN_S = 5.0
"""How long a look waits for an instance that loads adapters."""

ALIGN_AGAIN_S = 30.0
"""After how long an instance that could not load an adapter is asked again: its folder or the hub may be back."""

DESERTED_S = 600.0
"""How long a machine may have no instance, while others have, until its KV is forgotten."""

log = structlog.get_logger(__name__)


class LiveController:
    """Keeps a ``controller`` true to ``instances``.

    All instances serve the same model, and so have the same fingerprint. The GPU memory and the costs of the first one
    are taken for all. Instances with the same ``KvMemory.shared`` are at one location, and share its host memory and
    disk; those with the same ``KvMemory.disk`` share a disk. An engine is profiled at its first start; profiles are
    kept in the folder ``profiles``. Without ``gates``, composing passes no gate. A ``shard`` of several controllers has
    its part of all budgets. A query takes at most ``query_timeout_s``.

    ``clock`` gives seconds on any monotonic scale, ``wall_clock`` seconds since the epoch. Stamps of host memory begin
    at the wall clock's microseconds, and above every stamp that the instances report: the clock may have been set back
    since a former controller.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instances: LiveInstances,
        profiles: Path,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        gates: GateFolder | None = None,
        shard: ControllerShard = WHOLE,
        query_timeout_s: float = 300.0,
    ) -> None:
        self._settings = shard.settings(settings)
        self._shard = shard
        self._query_timeout_s = query_timeout_s
        self._gates = gates
        self._instances = instances
        self._profiles = profiles
        self._clock = clock
        self._wall_clock = wall_clock
        self._controller: Controller | None = None
        # That of the first instance. Only instances whose KV has the same fingerprint get plans.
        self._memory: KvMemory | None = None
        # Instances that could not serve all adapters, until when they are left alone, and of which version those were.
        self._unaligned: dict[str, tuple[float, int]] = {}
        self._aligning: dict[str, asyncio.Future[dict[str, RagtreeError]]] = {}
        # Locations without an instance, and since when.
        self._deserted: dict[str, float] = {}
        # Instances join one after another, so that none drops what another one has just written.
        self._joining = asyncio.Lock()
        # What each disk holds, and a location with it, until all machines that are there at the start have reported.
        self._disk_reports: dict[str, tuple[str, ResidencyReport]] = {}
        self._fence = DeletionFence()

    @property
    def controller(self) -> Controller:
        """The controller. Available once ``start`` has returned."""
        assert self._controller is not None, "the controller was not started"
        return self._controller

    async def start(self, progress: Callable[[int, int], None], snapshot: Snapshot = EMPTY_SNAPSHOT) -> None:
        """Build the controller over the running instances and what their tiers hold.

        A machine or a disk that joins later drops its KV first unless it is known, because KV may be of deleted
        documents. So does, now, what the former controller had forgotten.

        ``snapshot`` is that of a former controller. At least one instance must be ready. If the engine is new,
        ``progress`` is called with the number of probes done and to do. Raises EngineDied if there is no instance,
        ConfigError for an engine that cannot be profiled, and what the engine raises.
        """
        # What a start that has failed has left.
        self._controller = None
        self._disk_reports.clear()
        adapters = Adapters(self._instances)
        first = await self._first(adapters, snapshot)
        engine = self._instances.at(first)
        info = await engine.info()
        memory = info.kv
        if memory is None:
            # vLLM's own cache is the only one, and its content is unknown here. The controller only orders the queue.
            controller = self._new(first, adapters, DeviceProfile.shipped(FALLBACK_PROFILE), step=info.step)
            controller.instances.add(first, "", ())
        else:
            profile = await load_or_measure(engine, memory, info, self._profiles, progress)
            if snapshot.places is not None:
                self._fence.recall(snapshot.places)
            await self._drop_suspected(first, engine, memory)
            reports = await engine.residency()
            controller = self._new(first, adapters, profile, memory, info.step, info.composing)
            controller.recovery.recall(snapshot)
            self._memory = memory
            kept = self._without_disk(reports, memory)
            controller.instances.add(first, memory.boot, kept, memory.shared, memory.peers)
        self._controller = controller
        await self.follow()
        for location, report in self._disk_reports.values():
            controller.recovery.restore([report], location)
        self._disk_reports.clear()
        controller.recovery.forget_recalled()
        self._fence.start()

    async def _first(self, adapters: Adapters, snapshot: Snapshot) -> str:
        """The instance that the controller is built over: its costs are what plans compare.

        It serves all ``adapters`` that were added, if any can. What none can is dropped. Raises EngineDied if no
        instance runs, and what they raise.
        """
        names = sorted(set(self._instances.names()) - set(self._instances.kv_generators()))
        if not names:
            raise EngineDied("no instance of the generator is running")
        if self._shard.number:
            adapters.recall(configured_at(await self._instances.at(names[0]).info()), {})
            return names[0]
        added = snapshot.added if snapshot.added is not None else await added_at(self._instances, ANSWER_S)
        failures: dict[str, RagtreeError] = {}
        for name in names:
            info = await self._instances.at(name).info()
            adapters.recall(configured_at(info), added)
            failures = await adapters.align(name, info)
            if not failures:
                return name
        for name, error in failures.items():
            log.error("adapter_not_served", instance=names[-1], adapter=name, reason=error.message, dropped=True)
            adapters.forget(name)
        return names[-1]

    async def follow(self) -> bool:
        """Tell the controller which instances have come, gone or restarted since the last look. Whether any has.

        An instance that does not answer is looked at again the next time.
        """
        known = self.controller.instances
        running = set(self._instances.names())
        changed = False
        for gone in known.boots.keys() - running - known.tiers.retired:
            log.info("an instance takes no more plans", instance=gone)
            known.retire(gone)
            changed = True
        changes = await asyncio.gather(*(self._look(instance) for instance in sorted(running - known.refused)))
        known.refused &= running
        self._unaligned = {name: since for name, since in self._unaligned.items() if name in running}
        for name in self._aligning.keys() - running:
            self._aligning.pop(name).cancel()
        return self._forget_deserted() or changed or any(changes)

    async def _look(self, instance: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._look_at(instance)
        except (RagtreeError, TimeoutError) as error:
            log.debug("an instance does not answer", instance=instance, error=str(error))
        except Exception:
            # A defect of one instance must not keep the controller from looking at the others.
            log.exception("an instance could not be looked at", instance=instance)
        return False

    async def _look_at(self, instance: str) -> bool:
        known, adapters = self.controller.instances, self.controller.adapters
        engine, version = self._instances.at(instance), adapters.version
        info = await engine.info()
        memory = info.kv
        boot = memory.boot if memory is not None else ""
        if known.boots.get(instance) == boot:
            return await self._is_back(instance, info, version)
        own, others = (kv.fingerprint if kv is not None else "" for kv in (memory, self._memory))
        if own != others or configured_at(info) != adapters.configured:
            reason = kv_difference(self._memory, memory) if own != others else "its adapters have other files"
            self._refuse(instance, reason)
            return False
        if not await self._align(instance, info):
            return False
        async with self._joining:
            if memory is not None:
                await self._drop_suspected(instance, engine, memory)
            reports = await engine.residency() if memory is not None else ()
            if adapters.version != version:
                # Others have changed theirs meanwhile. The next look finds out what is missing.
                return False
            self._add_or_restart(instance, boot, memory, reports)
        return True

    async def _is_back(self, instance: str, info: EngineInfo, version: int) -> bool:
        """Let a known instance take plans again if it was retired and can. Whether it does."""
        known = self.controller.instances
        aligned = await self._align(instance, info) and self.controller.adapters.version == version
        if not aligned or instance not in known.tiers.retired:
            return False
        log.info("an instance takes plans again", instance=instance)
        known.reinstate(instance)
        return True

    async def _align(self, instance: str, info: EngineInfo) -> bool:
        """Have an instance serve the adapters that all serve. Whether it may take plans.

        One that cannot takes none, and is asked again after a while. If no other serves, it does, and what it cannot
        serve is dropped, unless it only has no place yet. The first of several shards does all this.
        """
        known, adapters = self.controller.instances, self.controller.adapters
        if self._shard.number or not adapters.differ(info):
            self._aligning.pop(instance, None)
            return True
        others = known.serving - {instance, *self._instances.kv_generators()}
        until, version = self._unaligned.get(instance, (0.0, 0))
        if version == adapters.version and self._clock() < until and others:
            return False
        aligning = self._aligning.get(instance)
        if aligning is None:
            aligning = self._aligning[instance] = asyncio.ensure_future(adapters.align(instance, info))
        # A download may take minutes. The next looks find out how it has ended.
        await asyncio.wait({aligning}, timeout=ALIGN_S)
        if not aligning.done():
            return False
        del self._aligning[instance]
        failures = aligning.result()
        for name, error in failures.items():
            drop = not others and not isinstance(error, Conflict)
            log.error("adapter_not_served", instance=instance, adapter=name, reason=error.message, dropped=drop)
            if drop:
                adapters.forget(name)
        if not failures or not others:
            return True
        self._unaligned[instance] = (self._clock() + ALIGN_AGAIN_S, adapters.version)
        if instance in known.boots and instance not in known.tiers.retired:
            known.retire(instance)
        return False

    def _refuse(self, instance: str, reason: str) -> None:
        known = self.controller.instances
        log.error("an instance serves another model or layout and gets no plans", instance=instance, reason=reason)
        known.refused.add(instance)
        if instance in known.boots:
            known.retire(instance)

    async def _drop_suspected(self, instance: str, engine: LiveEngine, memory: KvMemory) -> None:
        """Have an instance drop what may be KV of deleted documents: it or its tiers were not there when they were."""
        known = self._controller.instances if self._controller is not None else None
        tiers = self._fence.suspected(instance, memory, known)
        if tiers:
            log.info("an instance drops what may be of deleted documents", instance=instance, tiers=[*map(str, tiers)])
            # Other shards know the instance already, and have their own KV there.
            await engine.carry_out(Orders(everything=True, tiers=tiers, of=self._shard.namespace("")))

    def _add_or_restart(
        self, instance: str, boot: str, memory: KvMemory | None, reports: Sequence[ResidencyReport]
    ) -> None:
        known = self.controller.instances
        location = ""
        peers = NO_PEERS
        if memory is not None:
            location, peers = memory.shared, memory.peers
            known.add_location(self._storage(memory))
            others = {Tier.HOST: known.at(location), Tier.DISK: known.using(disk_of(memory))}
            # While other instances use a tier, the tree knows best what it holds. An order of a former controller may
            # have left a higher stamp, though.
            reports = [
                replace(report, nodes=()) if others.get(report.tier, set()) - {instance} else report
                for report in reports
            ]
            if not self._fence.started:
                reports = self._without_disk(reports, memory)
        if instance not in known.boots:
            log.info("an instance takes plans", instance=instance, location=location)
            generates = instance in self._instances.kv_generators()
            known.add(instance, boot, reports, location, peers, kv_generator=generates)
        else:
            log.info("an instance has restarted", instance=instance, location=location)
            known.restart(instance, boot, reports, location, peers)

    def _without_disk(self, reports: Sequence[ResidencyReport], memory: KvMemory) -> list[ResidencyReport]:
        """The reports but for that of the disk, which is restored last.

        Its nodes may come after documents in the memory of any machine that has it.
        """
        for report in reports:
            if report.tier is Tier.DISK:
                self._disk_reports.setdefault(disk_of(memory), (memory.shared, report))
        return [report for report in reports if report.tier is not Tier.DISK]

    def _forget_deserted(self) -> bool:
        """Forget what locations held that have had no instance for long, while others have. Whether there was any."""
        known, now = self.controller.instances, self._clock()
        serving = any(known.at(location) for location in known.tiers.locations)
        deserted = known.tiers.deserted if serving else ()
        self._deserted = {location: self._deserted.get(location, now) for location in deserted}
        gone = [location for location, since in self._deserted.items() if now - since >= DESERTED_S]
        for location in gone:
            log.info("a machine has no instance any more, and its KV is forgotten", location=location)
            self.controller.forget_location(location)
        return bool(gone)

    def _new(
        self,
        instance: str,
        adapters: Adapters,
        profile: DeviceProfile,
        memory: KvMemory | None = None,
        step: StepBudget | None = None,
        composing: ComposingInfo | None = None,
    ) -> Controller:
        return Controller(
            self._settings,
            [instance],
            self._clock,
            Engines(profile.costs, self._shard.step(step), composing),
            self._storage(memory) if memory is not None else KvStorage(Capacities(0)),
            executor=EngineExecutor(self._instances),
            shard=self._shard,
            gate=self._gates.read(memory.fingerprint) if self._gates is not None and memory is not None else Gate(),
            query_timeout_s=self._query_timeout_s,
            adapters=adapters,
        )

    def _storage(self, memory: KvMemory) -> KvStorage:
        pages = (memory.gpu_pages, memory.host_pages, memory.disk_pages)
        return KvStorage(
            Capacities(*(self._shard.share(count) * memory.page_tokens for count in pages)),
            memory.paging,
            memory.fingerprint,
            memory.shared,
            memory.disk,
            self._shard.first(memory.host_pages),
            first_stamp=int(self._wall_clock() * 1e6) + 1,
        )


# A full collection over 300,000 nodes stops the process for a second. The tree does not need it: reference counting
# frees what leaves it. So requests only pay for collections of young objects, and full ones run while it idles.
#
# Python counts objects made less objects freed. A full tree frees about as many as it makes, so a collection finds many
# times this number of young objects. At 10,000 it delays one request in some thousands by 40 ms; at 500, more than one
# in a thousand by 3 ms.
_YOUNG, _MIDDLE, _NEVER = 5_000, 5, 1_000_000


def spare_full_collections() -> None:
    """Collect young objects often and old ones never, for the whole process. Call ``collect_while_idle`` for those."""
    gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)


def collect_while_idle() -> None:
    """Collect everything allocated since the last call, and exempt what survives from later collections."""
    gc.collect()
    gc.freeze()
