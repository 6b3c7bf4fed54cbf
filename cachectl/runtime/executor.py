"""How the controller reaches the instances outside of a query's own plan."""

from collections.abc import Collection, Sequence
from contextlib import aclosing
from typing import Protocol

from cachectl.costs.profiling import PrefillProbe
from protocol.generation import PrefillResult, Sampling
from protocol.kv import LostCopy, Orders
from protocol.parts import Generator
from protocol.plans import PrefillPlan


class LiveEngine(Generator, PrefillProbe, Protocol):
    """An instance of the generator that can also be profiled."""


class LiveInstances(Protocol):
    """The instances that run now."""

    def names(self) -> Collection[str]:
        """The names of the instances that take new plans. One that drains or is gone is not among them."""

    def kv_generators(self) -> Collection[str]:
        """The names of those among them that only generate KV, for queries that wait for the others."""

    def at(self, instance: str) -> LiveEngine:
        """The instance of this name. Its calls raise EngineDied if it is gone."""


class Executor(Protocol):
    """Carries out the controller's orders and prefetches on the instances."""

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:
        """Have an instance carry out orders, and return when it has. Returns copies that should be there and are not.

        Carrying orders out twice does no harm. Raises Unavailable if the instance cannot be reached.
        """

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        """Have an instance prefill a plan's prompt without an answer. Returns None if nothing of it is kept.

        Cancelling the call ends the prefill. Raises Unavailable if the plan's instance cannot be reached.
        """


class EngineExecutor:
    """``Executor`` over ``LiveInstances``."""

    def __init__(self, instances: LiveInstances) -> None:
        self._instances = instances

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:
        """Have an instance carry out orders."""
        return await self._instances.at(instance).carry_out(orders)

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        """Have the plan's instance prefill its prompt. The one token that it generates is dropped."""
        prefill = None
        async with aclosing(self._instances.at(plan.instance).stream(plan, Sampling(max_tokens=1))) as steps:
            async for step in steps:
                prefill = step.prefill or prefill
        return prefill
