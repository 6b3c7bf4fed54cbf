"""A process's connection to Redis, with its settings and metrics. It tracks whether Redis is up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import BaseModel, Field, SecretStr, field_validator
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from protocol.repeating import repeated

T = TypeVar("T")

TIMEOUT_S = 0.25
"""How long a request waits for Redis before it continues without."""
PROBE_S = 1.0
_CONNECTIONS = 16
_GONE = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)

log = structlog.get_logger(__name__)


class RedisSettings(BaseModel, extra="forbid", frozen=True):
    """Which Redis to use."""

    url: SecretStr | None = Field(
        None,
        description="redis://, rediss:// or unix:// URL, with user and password if the server needs them. Without it, "
        "each process has its own state, in memory or on disk.",
    )
    prefix: str = Field(
        "ragtree", min_length=1, pattern=r"^[\w:.-]+$", description="Prefix of all keys; use one per deployment."
    )

    @field_validator("url")
    @classmethod
    def _usable(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            try:
                pool = ConnectionPool.from_url(url.get_secret_value())
                pool.connection_class(**pool.connection_kwargs)
            except (ValueError, TypeError) as error:
                # Do not chain the cause: it may quote the password.
                kind = type(error).__name__
                raise ValueError(f"not a valid redis://, rediss:// or unix:// URL ({kind})") from None
        return url


class RedisMetrics:
    """Prometheus metrics of one process, in the caller's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.up = Gauge("ragtree_redis_up", "Whether Redis answered the last call or probe.", registry=registry)
        self.errors = Counter(
            "ragtree_redis_errors_total",
            "Calls that Redis did not serve, including those not tried while it was down.",
            ["store"],
            registry=registry,
        )
        self.dropped = Counter(
            "ragtree_query_log_dropped_total", "Queries that were not logged for warm-ups.", registry=registry
        )


class RedisAway(Exception):
    """Redis did not serve a call: it is down, refuses, or is full. Never leaves the package ``services.redis``."""


class RedisLink:
    """Calls Redis, with a time limit of ``timeout_s`` for each call. Makes no calls while Redis is known to be down.

    The first call that fails marks Redis as down. From then on calls fail at once, until a probe, one per second,
    succeeds. A server that answers with an error (it may be full) is not down: only that call fails. A link belongs to
    one event loop.
    """

    def __init__(self, settings: RedisSettings, metrics: RedisMetrics, timeout_s: float = TIMEOUT_S) -> None:
        assert settings.url is not None
        self.pool = BlockingConnectionPool.from_url(
            settings.url.get_secret_value(),
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            # Each call has its own time limit.
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
        )
        self.client = Redis(connection_pool=self.pool)
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._up = asyncio.Event()
        self._looked = False
        metrics.up.set(0)

    @property
    def up(self) -> bool:
        """Whether the last call or probe got an answer."""
        return self._up.is_set()

    async def returned(self) -> None:
        """Return as soon as Redis is up."""
        await self._up.wait()

    async def call(self, store: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``. Raises RedisAway if it fails, and counts the failure for ``store``."""
        try:
            if not self.up:
                raise RedisAway
            try:
                return await self._in_time(work)
            except _GONE as error:
                self._lost(error)
                raise RedisAway from error
            except RedisError as error:
                raise RedisAway from error
        except RedisAway:
            self._metrics.errors.labels(store).inc()
            raise

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Probe Redis now, and every second while the context is open. Disconnect at the end."""
        await self._probe()
        try:
            async with repeated(self._probe, PROBE_S):
                yield
        finally:
            await self.client.aclose()
            await self.pool.disconnect()

    async def _probe(self) -> None:
        try:
            await self._in_time(self.client.ping)
        except (*_GONE, RedisError) as error:
            self._lost(error)
        else:
            if not self.up:
                # The pool hands out connections that the server has closed, and the first call would mark it as down.
                await self.pool.disconnect(inuse_connections=False)
                self._up.set()
                self._metrics.up.set(1)
                log.info("redis_is_there")
        self._looked = True

    async def _in_time(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``. Raises TimeoutError after ``timeout_s`` seconds."""
        working = asyncio.ensure_future(work())
        try:
            # asyncio.timeout() would discard an answer that arrived in time while this process was busy.
            await asyncio.wait({working}, timeout=self._timeout_s)
            if not working.done():
                raise TimeoutError
            return working.result()
        finally:
            working.cancel()

    def _lost(self, error: Exception) -> None:
        if self.up or not self._looked:
            # Log once, not for each failed call.
            log.warning("redis_is_away", error=repr(error))
        self._looked = True
        self._up.clear()
        self._metrics.up.set(0)
