"""Controllers whose instances are added and retired, and an executor that records their orders."""

import asyncio

import msgspec
from controller_under_test import TOKENS, ask

from protocol.errors import EngineDied
from protocol.generation import PrefillResult
from protocol.kv import HeldNode, LostCopy, Move, Orders, Pages, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


class RecordingExecutor:
    """Executor that records the orders of each instance.

    An instance on ``hold`` waits until the test sets its event. One that is ``gone`` fails.
    """

    def __init__(self) -> None:
        self.done: list[tuple[str, Orders]] = []
        self.lost: list[LostCopy] = []
        self.gone: set[str] = set()
        self.prepared: list[PrefillPlan] = []
        self._held: dict[str, asyncio.Event] = {}
        self._prefills: dict[str, asyncio.Future[PrefillResult | None]] = {}

    def hold(self, instance: str) -> asyncio.Event:
        self._held[instance] = asyncio.Event()
        return self._held[instance]

    async def carry_out(self, instance: str, orders: Orders) -> list[LostCopy]:
        if instance in self._held:
            await self._held[instance].wait()
        if instance in self.gone:
            raise EngineDied(f"{instance} is gone")
        self.done.append((instance, orders))
        lost, self.lost = self.lost, []
        return lost

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        self.prepared.append(plan)
        self._prefills[plan.query_id] = asyncio.get_running_loop().create_future()
        return await self._prefills[plan.query_id]

    async def prefilled(self, plan_id: str) -> None:
        self._prefills[plan_id].set_result(PrefillResult(2 * TOKENS + 1, 0, 1.0))
        await all_ready()

    def asked(self, instance: str) -> list[Orders]:
        return [orders for name, orders in self.done if name == instance]

    def moves(self, instance: str) -> list[Move]:
        return [move for orders in self.asked(instance) for move in orders.moves]


async def all_ready() -> None:
    """Let all ready tasks and due timers run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def done(tasks: dict[str, asyncio.Task]) -> list[str]:
    """The queries whose tasks are done."""
    await all_ready()
    return [query_id for query_id, task in tasks.items() if task.done()]


async def caches(controller) -> list[str]:
    """The instances whose GPUs the controller knows."""
    return [tier.instance for tier in (await controller.stats()).tiers if tier.tier is GPU]


def caches_with_copies(view) -> list[str]:
    nodes = [node for nodes in view.namespaces.values() for node in nodes]
    for node in nodes:
        nodes += node.children
    return [tier for node in nodes for tier in node.places]


def holding(tier: Tier, documents: str, first_page: int, instance: str | None = None) -> ResidencyReport:
    pages = Pages(tuple(range(first_page, first_page + TOKENS)), 9) if tier is HOST else None
    return ResidencyReport(tier, (HeldNode("tenant", tuple(documents), TOKENS, pages),), instance)


def avoiding(query_id: str, *instances: str, documents: str = ""):
    return msgspec.structs.replace(ask(query_id, documents, question=9), avoid=instances)
