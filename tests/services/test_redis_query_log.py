"""The query log in a Redis stream that gateways share."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from query_log_contract import QueryLogContract, as_search, search
from redis_cases import PATIENT_S, QUICK_S, Linked, linked
from redis_server import RedisServer

from protocol.errors import Unavailable
from services.redis import query_log
from services.redis.query_log import StreamQueryLog

KEY = "test:queries"


@asynccontextmanager
async def stream(
    server: RedisServer, most: int = 1000, timeout_s: float = PATIENT_S
) -> AsyncIterator[tuple[StreamQueryLog, Linked]]:
    async with linked(server, timeout_s=timeout_s) as its:
        log = StreamQueryLog(its.link, its.metrics, KEY, most)
        async with log.written():
            yield log, its


class TestQueryLogInRedis(QueryLogContract):
    @pytest.fixture
    def noting(self, redis_server) -> Callable[[], AbstractAsyncContextManager[StreamQueryLog]]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[StreamQueryLog]:
            async with stream(redis_server) as (log, _):
                yield log

        return opened


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "the condition never came true"
        await asyncio.sleep(0.005)


async def test_gateways_write_to_one_stream(redis_server):
    async with stream(redis_server) as (one, _), stream(redis_server) as (other, _):
        one.note(search(1))
        other.note(search(1))
        with redis_server.client() as client:
            await until(lambda: client.xlen(KEY) == 2)
        assert await one.counted(as_search) == {search(1): 2}


async def test_stream_keeps_the_newest_entries(redis_server):
    async with stream(redis_server, most=100) as (log, _):
        for number in range(900):
            log.note(search(number))
    async with stream(redis_server) as (log, _):
        counted = await log.counted(as_search)
    # Redis trims whole nodes of a hundred entries.
    assert 100 <= counted.total() <= 300
    assert search(899) in counted
    assert search(0) not in counted


async def test_a_long_log_is_read_page_by_page(redis_server, monkeypatch):
    monkeypatch.setattr(query_log, "_PAGE", 7)
    async with stream(redis_server) as (log, _):
        for number in range(50):
            log.note(search(number % 10))
    async with stream(redis_server) as (log, _):
        assert await log.counted(as_search) == {search(number): 5 for number in range(10)}


@pytest.mark.parametrize("lost", ["killed", "hanging", "full"])
async def test_entries_are_written_when_redis_is_back(redis_server, monkeypatch, lost: str):
    monkeypatch.setattr(query_log, "MOST_WAITING", 5)
    away = {"killed": redis_server.kill, "hanging": redis_server.hang, "full": redis_server.fill}
    back = {"killed": redis_server.start, "hanging": redis_server.go_on, "full": redis_server.empty}
    async with stream(redis_server, timeout_s=QUICK_S) as (log, its):
        away[lost]()
        began = time.monotonic()
        for number in range(8):
            log.note(search(number))
        assert time.monotonic() - began < QUICK_S, "note() does not block"
        assert its.value("ragtree_query_log_dropped_total") == 3
        await until(lambda: its.errors(query_log.STORE) > 0 or not its.link.up)
        if lost != "full":
            with pytest.raises(Unavailable):
                await log.counted(as_search)
        back[lost]()
        await until(lambda: not log._waiting)
        assert (await log.counted(as_search)).keys() == {search(number) for number in range(5)}


async def test_waiting_entries_are_written_or_dropped_at_the_end(redis_server):
    async with stream(redis_server) as (log, _):
        log.note(search(1))
    with redis_server.client() as client:
        assert client.xlen(KEY) == 1
    async with stream(redis_server, timeout_s=QUICK_S) as (log, _):
        redis_server.hang()
        log.note(search(2))
        began = time.monotonic()
    assert time.monotonic() - began < 5
    redis_server.go_on()


async def test_long_entries_are_dropped(redis_server):
    async with stream(redis_server) as (log, its):
        log.note(search(query="x" * query_log.LONGEST_ENTRY))
        assert its.value("ragtree_query_log_dropped_total") == 1
    with redis_server.client() as client:
        assert not client.exists(KEY)


async def test_waiting_entries_are_not_tried_while_redis_is_down(redis_server, monkeypatch):
    monkeypatch.setattr(query_log, "PROBE_S", 0.001)
    async with stream(redis_server) as (log, its):
        redis_server.kill()
        log.note(search(1))
        await until(lambda: not its.link.up)
        for _ in range(20):
            await its.link._probe()
        assert its.errors(query_log.STORE) == 1
