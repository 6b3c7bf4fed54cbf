"""Orders that no plan takes along, on their way to the instances."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import structlog

from cachectl.runtime.executor import Executor
from cachectl.scheduling.plan_translation import lost_copies
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import RagtreeError
from protocol.kv import Orders

_log = structlog.get_logger(__name__)


class Deliveries:
    """Delivers pending moves that no plan takes along, one delivery at a time to each instance.

    Without ``executor`` it all waits for the next plans. Belongs to one event loop.
    """

    def __init__(self, tree: KnowledgeTree, executor: Executor | None) -> None:
        self._tree = tree
        self._executor = executor
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def possible(self) -> bool:
        """Whether anybody takes orders outside of plans."""
        return self._executor is not None

    def start(self) -> None:
        """Deliver what waits in the background; what cannot be delivered now waits for the next call."""
        if self._executor is None or not self._tree.tiers.pending_moves:
            return
        for instance in self._instances():
            if instance not in self._tasks and self._tree.tiers.has_moves(instance):
                self._tasks[instance] = asyncio.get_running_loop().create_task(self._in_background(instance))

    async def everywhere(self, forget: Sequence[tuple[str, str]] = (), everything: bool = False) -> None:
        """Deliver what waits for any instance, and have all of them ``forget`` documents, by namespace, or all.

        Raises what the first one raised that failed, when all have been tried.
        """
        ended = await asyncio.gather(
            *(self.deliver(name, forget, everything) for name in self._instances()), return_exceptions=True
        )
        for failure in ended:
            if failure is not None:
                raise failure

    async def deliver(self, instance: str, forget: Sequence[tuple[str, str]] = (), everything: bool = False) -> None:
        """Deliver what waits for an instance, after whatever is on its way. Raises what ``Executor.carry_out`` does."""
        if self._executor is None:
            return
        async with self._turns[instance]:
            if instance not in self._instances():
                # Retired while this waited for its turn.
                return
            # Decided after the last plan and before the next.
            tick = self._tree.grants.tick + 0.5
            moves = self._tree.tiers.take_moves(instance)
            if not (moves or forget or everything):
                return
            try:
                orders = Orders(tuple(moves), tuple(forget), everything)
                lost = lost_copies(await self._executor.carry_out(instance, orders))
            except BaseException:
                self._tree.tiers.return_moves(moves, instance, tick)
                raise
            self._tree.grants.lose(instance, lost)

    def _instances(self) -> list[str]:
        """Who takes orders: what retires has no successor to what it holds, and may be out of reach already."""
        placement = self._tree.tiers
        return [instance for instance in placement.gpus if instance not in placement.retired]

    async def _in_background(self, instance: str) -> None:
        try:
            while instance in self._instances() and self._tree.tiers.has_moves(instance):
                await self.deliver(instance)
        except RagtreeError as error:
            _log.warning("orders could not be delivered and wait", instance=instance, error=str(error))
        except Exception:
            _log.exception("orders could not be delivered and wait", instance=instance)
        finally:
            del self._tasks[instance]
