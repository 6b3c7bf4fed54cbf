"""The stores of a gateway that shares its state with other gateways."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from limits.aio.storage import MemoryStorage, RedisStorage
from prometheus_client import CollectorRegistry

from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog, QueryLogFile
from gateway.stores.uploads import UploadRecords
from gateway.stores.windows import SlidingWindows, Windows
from services.redis.link import TIMEOUT_S, RedisLink
from services.redis.metrics import RedisMetrics
from services.redis.query_log import StreamQueryLog
from services.redis.settings import RedisSettings
from services.redis.uploads import RedisUploadRecords
from services.redis.windows import SharedWindows

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
