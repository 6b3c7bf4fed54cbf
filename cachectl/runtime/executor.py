"""Who carries out what the controller orders on its own account, and prefills for a query that still waits."""

from collections.abc import Sequence
from typing import Protocol

from protocol.generation import PrefillResult
from protocol.kv import LostCopy, Orders
from protocol.plans import PrefillPlan


class Executor(Protocol):
    """The instances, as far as they take orders."""

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:
        """Have an instance carry out orders, to their end; copies that should be there now and are not.

        Doing so twice does no harm. Raises Unavailable where the instance is not there.
        """

    async def prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        """Have a plan's prompt prefilled for no answer's sake; None where nothing of it is kept.

        What cancels the call ends the prefill. Raises Unavailable where the plan's instance is not there.
        """
