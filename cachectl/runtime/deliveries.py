"""Delivers pending moves and deletions to instances when no plan takes them along."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import structlog

from cachectl.runtime.executor import Executor
from cachectl.runtime.messages import lost_copies
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.tier_cache import TierCache
from protocol.errors import EngineNotReady, RagtreeError
from protocol.kv import Orders
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


@dataclass
class _Missed:
    """Deletions that an instance has missed while it was retired: documents by namespace and content, or everything."""

    forget: dict[tuple[str, str], None] = field(default_factory=dict)
    everything: bool = False


class Deliveries:
    """Sends pending moves to their instances, one delivery at a time to each.

    A retired instance gets nothing. If it takes requests again, it is sent the deletions that it has missed.
    Without an ``executor``, pending moves wait for the instance's next plan. Belongs to one event loop.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor | None) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._executor = executor
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, _Missed] = {}

    @property
    def possible(self) -> bool:
        """Whether orders can be delivered outside of plans."""
        return self._executor is not None

    def start(self) -> None:
        """Deliver pending moves and missed deletions in the background. Failed deliveries wait for the next call."""
        if self._executor is None or not (self._tree.tiers.pending_moves or self._missed):
            return
        for instance in self._instances():
            if instance not in self._tasks and self._has_work(instance):
                running = self._in_background(instance, self._executor)
                self._tasks[instance] = asyncio.get_running_loop().create_task(running)

    async def everywhere(self, forget: Sequence[tuple[str, str]] = (), everything: bool = False) -> None:
        """Deliver pending moves to all instances, and have each ``forget`` documents, or ``everything``.

        ``forget`` lists namespaces and contents. Every instance is tried; then the first error is raised, if any.
        Raises EngineNotReady if the tiers of a location may still hold what is to be forgotten, because no instance
        there takes orders.
        """
        for retired in self._tree.tiers.retired:
            self._miss(retired, forget, everything)
        instances = self._instances()
        unreached = self._unreached(instances) if forget or everything else []
        ended = await asyncio.gather(
            *(self.deliver(name, forget, everything) for name in instances), return_exceptions=True
        )
        for failure in ended:
            if failure is not None:
                raise failure
        if self._executor is not None and not instances:
            raise EngineNotReady("no instance of the generator takes orders now; try again")
        if self._executor is not None and unreached:
            raise EngineNotReady("no instance of the generator takes orders now on one of the machines; try again")

    async def deliver(self, instance: str, forget: Sequence[tuple[str, str]] = (), everything: bool = False) -> None:
        """Deliver an instance's pending moves, after any delivery that is under way.

        Raises what ``Executor.carry_out`` raises; the moves then stay pending.
        """
        if self._executor is None:
            return
        async with self._locks[instance]:
            if instance not in self._instances():
                # It retired while this delivery waited for the lock.
                if instance in self._tree.tiers.retired:
                    self._miss(instance, forget, everything)
                return
            # These moves count as decided after the last plan and before the next.
            tick = self._tree.grants.tick + 0.5
            batch = self._scheduler.deliver(instance)
            if not (batch.moves or forget or everything):
                return
            try:
                orders = Orders(tuple(batch.moves), tuple(forget), everything)
                unwritten = lost_copies(await self._executor.carry_out(instance, orders))
            except BaseException:
                self._tree.tiers.under_way.give_back(batch, tick)
                raise
            self._scheduler.delivered(batch, unwritten)

    def discard_missed(self, instance: str) -> None:
        """Forget what an instance has missed: its engine has ended."""
        self._missed.pop(instance, None)

    async def _catch_up(self, instance: str, executor: Executor) -> None:
        """Have an instance carry out the deletions that it has missed, in its own blocks.

        Others at its location have carried them out in the shared tiers, which may hold the documents again by now.
        Without others, the deletions were not confirmed.
        """
        async with self._locks[instance]:
            missed = self._missed.pop(instance, _Missed())
            try:
                orders = Orders(forget=tuple(missed.forget), everything=missed.everything, tiers=(Tier.GPU,))
                await executor.carry_out(instance, orders)
            except BaseException:
                self._miss(instance, missed.forget, missed.everything)
                raise

    def _miss(self, instance: str, forget: Collection[tuple[str, str]], everything: bool) -> None:
        """Note a deletion, if it is one, that an instance has missed."""
        if forget or everything:
            missed = self._missed.setdefault(instance, _Missed())
            missed.forget.update(dict.fromkeys(forget))
            missed.everything |= everything

    def _has_work(self, instance: str) -> bool:
        return instance in self._missed or self._tree.tiers.has_moves(instance)

    def _unreached(self, instances: Collection[str]) -> list[TierCache]:
        """The shared tiers with room for KV that none of these instances reaches."""
        tiers = self._tree.tiers
        gpus = [tiers.gpu(instance) for instance in instances]
        shared = [*(location.host for location in tiers.locations.values()), *tiers.disks.values()]
        return [cache for cache in shared if cache.capacity and not any(gpu.reaches(cache) for gpu in gpus)]

    def _instances(self) -> list[str]:
        """The instances that take orders. A retired one does not: its copies go with it, and it may be unreachable."""
        tiers = self._tree.tiers
        return [instance for instance in tiers.gpus if instance not in tiers.retired]

    async def _in_background(self, instance: str, executor: Executor) -> None:
        try:
            while instance in self._instances() and self._has_work(instance):
                await self.deliver(instance)
                if instance in self._missed:
                    await self._catch_up(instance, executor)
        except RagtreeError as error:
            _log.warning("orders could not be delivered and stay pending", instance=instance, error=str(error))
        except Exception:
            _log.exception("orders could not be delivered and stay pending", instance=instance)
        finally:
            del self._tasks[instance]
