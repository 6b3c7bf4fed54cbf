"""Who carries out what the controller orders outside of any plan."""

from collections.abc import Sequence
from typing import Protocol

from protocol.kv import LostCopy, Orders


class Hands(Protocol):
    """The instances, as far as they take orders."""

    async def carry_out(self, instance: str, orders: Orders) -> Sequence[LostCopy]:
        """Have an instance carry out orders, to their end; copies that should be there now and are not.

        Doing so twice does no harm. Raises Unavailable where the instance is not there.
        """
