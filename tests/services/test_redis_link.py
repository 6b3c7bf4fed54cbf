"""A process's connection to Redis: when it counts as up or down."""

import asyncio
import time

import pytest
from redis_cases import QUICK_S, linked, settings
from structlog.testing import capture_logs

from protocol.errors import ConfigError
from services.config import load_config
from services.redis.link import PROBE_S, RedisAway, RedisLink


async def ping(link: RedisLink) -> bool:
    return await link.call("test", link.client.ping)


async def test_call_returns_redis_answer(redis_server):
    async with linked(redis_server) as its:
        assert its.link.up
        assert await ping(its.link)
        assert its.value("ragtree_redis_up") == 1
        assert its.errors("test") == 0


async def test_link_finds_a_server_that_starts_later(redis_server):
    redis_server.kill()
    with capture_logs() as logs:
        async with linked(redis_server) as its:
            assert not its.link.up
            with pytest.raises(RedisAway):
                await ping(its.link)
            redis_server.start()
            async with asyncio.timeout(PROBE_S + 10):
                await its.link.returned()
            assert await ping(its.link)
    assert [line["event"] for line in logs] == ["redis_is_away", "redis_is_there"]


async def test_killed_server_fails_one_call_slowly_and_is_logged_once(redis_server):
    with capture_logs() as logs:
        async with linked(redis_server) as its:
            redis_server.kill()
            for _ in range(50):
                with pytest.raises(RedisAway):
                    await ping(its.link)
            assert its.errors("test") == 50
            assert its.value("ragtree_redis_up") == 0
            for _ in range(3):
                await its.link._probe()
            redis_server.start()
            async with asyncio.timeout(PROBE_S + 10):
                await its.link.returned()
            assert await ping(its.link)
            assert its.value("ragtree_redis_up") == 1
    assert [line["event"] for line in logs] == ["redis_is_there", "redis_is_away", "redis_is_there"]


async def test_hanging_server_costs_one_timeout(redis_server):
    async with linked(redis_server, timeout_s=QUICK_S) as its:
        redis_server.hang()
        began = time.monotonic()
        waited = await asyncio.gather(*(ping(its.link) for _ in range(1000)), return_exceptions=True)
        assert {type(error) for error in waited} == {RedisAway}
        # 1000 calls on 16 connections: still one timeout each, not one after another (16 s).
        assert time.monotonic() - began < QUICK_S + 8
        began = time.monotonic()
        for _ in range(1000):
            with pytest.raises(RedisAway):
                await ping(its.link)
        assert time.monotonic() - began < 8, "calls wait although the server is known to be down"
        redis_server.go_on()
        async with asyncio.timeout(PROBE_S + 10):
            await its.link.returned()
        assert await ping(its.link)


async def test_late_answer_is_not_given_to_another_call(redis_server):
    async with linked(redis_server, timeout_s=QUICK_S) as its:
        client = its.link.client
        await client.set("late", "old")
        redis_server.hang()
        with pytest.raises(RedisAway):
            await its.link.call("test", lambda: client.get("late"))
        redis_server.go_on()
        async with asyncio.timeout(PROBE_S + 10):
            await its.link.returned()
        assert await its.link.call("test", lambda: client.echo("now")) == b"now"


async def test_busy_process_does_not_take_redis_for_down(redis_server):
    async with linked(redis_server, timeout_s=QUICK_S) as its:
        assert await ping(its.link)
        redis_server.hang()
        asked = asyncio.create_task(ping(its.link))
        for _ in range(20):
            await asyncio.sleep(0)
        # Block the event loop while the answer arrives and the time runs out.
        redis_server.go_on()
        time.sleep(2 * QUICK_S)  # noqa: ASYNC251
        assert await asked
        assert its.link.up


async def test_full_server_refuses_but_is_up(redis_server):
    async with linked(redis_server) as its:
        redis_server.fill()
        with pytest.raises(RedisAway):
            await its.link.call("test", lambda: its.link.client.set("a", "b"))
        assert its.link.up
        assert its.errors("test") == 1
        redis_server.empty()
        assert await its.link.call("test", lambda: its.link.client.set("a", "b"))


async def test_wrong_password_counts_as_down(redis_server):
    with redis_server.client() as client:
        client.config_set("requirepass", "right")
    with capture_logs() as logs:
        async with linked(redis_server) as its:
            with pytest.raises(RedisAway):
                await ping(its.link)
    assert [line["event"] for line in logs] == ["redis_is_away"]


@pytest.mark.parametrize(
    "url",
    ["localhost:6379", "http://x", "redis://u:hunter2@h:port", "redis://h:1/0?nonsense=1", "**********", ""],
)
def test_invalid_urls_are_refused(tmp_path, monkeypatch, url: str):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGTREE_REDIS__URL", url)
    with pytest.raises(ConfigError, match=r"redis\.url") as refused:
        load_config()
    assert "hunter2" not in refused.value.message


def test_environment_configures_the_server(tmp_path, monkeypatch, redis_server):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGTREE_REDIS__URL", redis_server.url)
    found = load_config().redis
    assert found.url == settings(redis_server).url
    assert redis_server.url not in repr(found)
