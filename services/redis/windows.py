"""Rate-limit windows that all gateways share."""

from gateway.stores.windows import Standing, Windows
from services.redis.link import RedisAway, RedisLink

STORE = "rate_limits"


class SharedWindows:
    """Windows in Redis, with windows of this gateway's own that decide while Redis is down.

    What this gateway admits counts in both, so a key does not get a fresh quota when Redis goes down.
    """

    def __init__(self, link: RedisLink, shared: Windows, own: Windows) -> None:
        self._link = link
        self._shared = shared
        self._own = own

    async def take(self, key: str, limit: int) -> bool:
        """Count one more if it fits; return whether it did."""
        try:
            taken = await self._link.call(STORE, lambda: self._shared.take(key, limit))
        except RedisAway:
            return await self._own.take(key, limit)
        if taken:
            await self._own.charge(key, 1)
        return taken

    async def charge(self, key: str, amount: int) -> None:
        """Count what was used, even above the limit. Usage that Redis misses is lost at the end of the minute."""
        await self._own.charge(key, amount)
        try:
            await self._link.call(STORE, lambda: self._shared.charge(key, amount))
        except RedisAway:
            return

    async def standing(self, key: str, limit: int) -> Standing:
        """Return the state of a key's window, compared with its limit."""
        try:
            return await self._link.call(STORE, lambda: self._shared.standing(key, limit))
        except RedisAway:
            return await self._own.standing(key, limit)
