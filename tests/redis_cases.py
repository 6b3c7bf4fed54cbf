"""Stores on a Redis that the test controls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from redis_server import RedisServer

from services.redis.link import RedisLink, RedisMetrics, RedisSettings

PATIENT_S = 10.0
"""Timeout for tests with a Redis that answers: a busy machine must not look like a lost server."""
QUICK_S = 1.0
"""Timeout for tests with a Redis that does not answer."""


@dataclass
class Linked:
    """A watched link and its metrics."""

    link: RedisLink
    metrics: RedisMetrics
    registry: CollectorRegistry

    def errors(self, store: str) -> float:
        return self.registry.get_sample_value("ragtree_redis_errors_total", {"store": store}) or 0.0

    def value(self, name: str) -> float:
        return self.registry.get_sample_value(name) or 0.0


def settings(server: RedisServer) -> RedisSettings:
    return RedisSettings(url=server.url)


@asynccontextmanager
async def linked(server: RedisServer, timeout_s: float = PATIENT_S) -> AsyncIterator[Linked]:
    registry = CollectorRegistry()
    metrics = RedisMetrics(registry)
    link = RedisLink(settings(server), metrics, timeout_s)
    async with link.watched():
        yield Linked(link, metrics, registry)
