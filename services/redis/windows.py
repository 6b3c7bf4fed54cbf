"""The windows of quotas that all gateways share."""

from gateway.stores.windows import Standing, Windows
from services.redis.link import RedisAway, RedisLink

STORE = "rate_limits"


class SharedWindows:
    """Windows in Redis, and this gateway's own beside them, which decide while Redis is away.

    What a gateway lets pass it counts in both, so that a key does not begin anew when Redis goes.
    """

    def __init__(self, link: RedisLink, shared: Windows, own: Windows) -> None:
        self._link = link
        self._shared = shared
        self._own = own

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits; whether it did."""
        try:
            taken = await self._link.call(STORE, lambda: self._shared.take(key, limit))
        except RedisAway:
            return await self._own.take(key, limit)
        if taken:
            await self._own.charge(key, 1)
        return taken

    async def charge(self, key: str, amount: int) -> None:
        """Count what was used, whether it fits or not; what Redis does not hear of it is forgotten with the minute."""
        await self._own.charge(key, amount)
        try:
            await self._link.call(STORE, lambda: self._shared.charge(key, amount))
        except RedisAway:
            return

    async def standing(self, key: str, limit: int) -> Standing:
        """How the key's window stands against a limit."""
        try:
            return await self._link.call(STORE, lambda: self._shared.standing(key, limit))
        except RedisAway:
            return await self._own.standing(key, limit)
