"""Rate-limit windows in Redis: the contract, and behaviour while Redis is down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from limits.aio.storage import MemoryStorage
from redis_cases import Linked, linked
from redis_server import RedisServer
from windows_contract import PERIOD_S, WindowsContract

from gateway.stores.windows import SlidingWindows
from services.redis.stores import STORE, SharedWindows, shared_storage


@asynccontextmanager
async def shared(server: RedisServer, period_s: int = 60) -> AsyncIterator[tuple[SharedWindows, Linked]]:
    async with linked(server) as its:
        own = SlidingWindows(MemoryStorage(), period_s)
        yield SharedWindows(its.link, SlidingWindows(shared_storage(its.link, "test"), period_s), own), its


class TestWindowsInRedis(WindowsContract):
    @pytest.fixture
    async def windows(self, redis_server) -> AsyncIterator[SharedWindows]:
        async with shared(redis_server, PERIOD_S) as (windows, its):
            yield windows
            assert its.errors(STORE) == 0


class TestWindowsWithoutRedis(WindowsContract):
    @pytest.fixture
    async def windows(self, redis_server) -> AsyncIterator[SharedWindows]:
        redis_server.kill()
        async with shared(redis_server, PERIOD_S) as (windows, _):
            yield windows


async def test_two_gateways_share_a_limit(redis_server):
    async with shared(redis_server) as (one, _), shared(redis_server) as (other, _):
        taken = await asyncio.gather(*(windows.take("a", 10) for windows in (one, other) for _ in range(10)))
        assert sum(taken) == 10
        await one.charge("b", 7)
        assert (await other.standing("b", 10)).room == 3


async def test_a_key_keeps_its_count_when_redis_goes_down(redis_server):
    async with shared(redis_server) as (windows, its):
        assert [await windows.take("a", 3) for _ in range(5)] == [True] * 3 + [False] * 2
        redis_server.kill()
        assert not await windows.take("a", 3)
        assert (await windows.standing("a", 3)).room == 0
        assert await windows.take("b", 3)
        assert its.errors(STORE) == 3


async def test_limits_hold_while_redis_is_full(redis_server):
    async with shared(redis_server) as (windows, its):
        redis_server.fill()
        assert [await windows.take("a", 2) for _ in range(4)] == [True, True, False, False]
        await windows.charge("b", 5)
        assert its.errors(STORE) == 5
        redis_server.empty()
        assert await windows.take("a", 2), "the shared window is empty, and decides again"
        assert its.errors(STORE) == 5


async def test_a_redis_that_comes_back_empty_is_used_again(redis_server):
    async with shared(redis_server) as (windows, its):
        assert await windows.take("a", 1)
        redis_server.kill()
        assert not await windows.take("a", 1)
        redis_server.start()
        await its.link.returned()
        assert [await windows.take("a", 1) for _ in range(2)] == [True, False]


async def test_windows_expire_within_two_minutes(redis_server):
    async with shared(redis_server) as (windows, _):
        await windows.take("owner/requests", 5)
        await windows.charge("owner/tokens", 500)
    with redis_server.client() as client:
        keys = client.keys("*")
        assert len(keys) == 2
        assert all(key.startswith(b"test:limits:") and 0 < client.ttl(key) <= 120 for key in keys)
