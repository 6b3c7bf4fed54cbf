"""The stores of a gateway that shares its state with other gateways."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from limits.aio.storage import MemoryStorage, RedisStorage
from prometheus_client import CollectorRegistry

from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog, QueryLogFile
from gateway.stores.uploads import UploadRecords
from gateway.stores.windows import SlidingWindows, Standing, Windows
from services.redis.link import TIMEOUT_S, RedisAway, RedisLink, RedisMetrics, RedisSettings
from services.redis.query_log import StreamQueryLog
from services.redis.uploads import RedisUploadRecords

STORE = "rate_limits"
_ENTRIES_PER_MIB = 2048
"""Assumes half a KiB per entry of the query log. The file keeps up to twice its MiB."""


class RedisStores:
    """``gateway.stores.stores.Stores`` in one Redis. While Redis is down, each gateway uses its own state.

    A call waits for ``timeout_s`` seconds.
    """

    def __init__(
        self,
        settings: RedisSettings,
        gateway: GatewaySettings,
        registry: CollectorRegistry,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        metrics = RedisMetrics(registry)
        self._link = RedisLink(settings, metrics, timeout_s)
        self.windows: Windows = SharedWindows(
            self._link, SlidingWindows(shared_storage(self._link, settings.prefix)), SlidingWindows(MemoryStorage())
        )
        self._stream = StreamQueryLog(
            self._link, metrics, f"{settings.prefix}:queries", max(1, gateway.query_log_mib * _ENTRIES_PER_MIB)
        )
        self.query_log: QueryLog = self._stream if gateway.query_log_mib else QueryLogFile(None, 0)
        self.upload_records: UploadRecords = RedisUploadRecords(self._link, settings.prefix)

    def degraded(self) -> tuple[str, ...]:
        """Return "redis" while Redis is down."""
        return () if self._link.up else ("redis",)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Use the stores while the context is open. Redis may be down at the start."""
        async with self._link.watched(), self._stream.written():
            yield


def shared_storage(link: RedisLink, prefix: str) -> RedisStorage:
    """Return the storage of the rate-limit windows in Redis, over the link's own connections."""
    options: dict[str, Any] = {"connection_pool": link.pool}
    return RedisStorage("async+redis://", implementation="redispy", key_prefix=f"{prefix}:limits", **options)


class SharedWindows:
    """Windows in Redis, with windows of this gateway's own that decide while Redis is down.

    Requests that this gateway admits count in both, so a key does not get a fresh quota when Redis goes down.
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
        with suppress(RedisAway):
            await self._link.call(STORE, lambda: self._shared.charge(key, amount))

    async def standing(self, key: str, limit: int) -> Standing:
        """Return the state of a key's window, compared with its limit."""
        try:
            return await self._link.call(STORE, lambda: self._shared.standing(key, limit))
        except RedisAway:
            return await self._own.standing(key, limit)
