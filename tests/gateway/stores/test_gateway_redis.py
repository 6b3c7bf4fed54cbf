"""Gateways that share one real Redis. The other three parts are fakes."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from gateway_fakes import Stack, eventually
from prometheus_client import CollectorRegistry
from redis_cases import PATIENT_S, settings
from redis_server import RedisServer
from varied import varied

from gateway.app import create_app
from gateway.settings import GatewaySettings
from gateway.stores import uploads
from protocol.errors import RetrieverNotReady
from services.redis.stores import RedisStores

PUT = "/v1/collections/default/documents/d1"
TEXT = {"Content-Type": "text/plain"}
LIMITED = {"requests_per_minute": 1000, "tokens_per_minute": 100_000}


@dataclass
class Gateway:
    app: FastAPI
    client: httpx.AsyncClient

    async def ask(self, **headers: str) -> httpx.Response:
        return await self.client.post("/query", json={"query": "x"}, headers=headers)

    async def degraded(self) -> list[str]:
        return (await self.client.get("/readyz")).json()["degraded"]

    async def metric(self, name: str) -> float:
        text = (await self.client.get("/metrics")).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


@asynccontextmanager
async def gateway(
    server: RedisServer, stack: Stack, timeout_s: float = PATIENT_S, **changes: object
) -> AsyncIterator[Gateway]:
    configured = varied(GatewaySettings, **changes)
    registry = CollectorRegistry()
    stores = RedisStores(settings(server), configured, registry, timeout_s)
    app = create_app(stack, configured, registry=registry, stores=stores)
    async with LifespanManager(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield Gateway(app, client)


async def test_two_gateways_share_a_keys_quota(redis_server, stack: Stack):
    keys = [{"secret": "one", "tenant": "acme"}, {"secret": "two", "tenant": "acme"}]
    limits = {"requests_per_minute": 6}
    async with (
        gateway(redis_server, stack, api_keys=keys, limits=limits) as one,
        gateway(redis_server, stack, api_keys=keys, limits=limits) as other,
    ):
        asked = [each.ask(Authorization="Bearer one") for each in (one, other) for _ in range(5)]
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
        assert sorted(statuses) == [200] * 6 + [429] * 4
        refused = await other.ask(Authorization="Bearer one")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert (await other.ask(Authorization="Bearer two")).status_code == 200, "quotas of other keys are separate"
        with redis_server.client() as client:
            stored = b" ".join(client.keys("*"))
        assert not any(clear in stored for clear in (b"acme", b"one", b"two"))


async def test_tokens_used_at_one_gateway_count_at_the_other(redis_server, stack: Stack):
    limits = {"tokens_per_minute": 1000}
    async with gateway(redis_server, stack, limits=limits) as one, gateway(redis_server, stack, limits=limits) as other:
        used = (await one.ask()).json()["usage"]["total_tokens"]
        # It is charged after its reply.
        mine = one.app.state.gateway
        await eventually(lambda: not len(mine.runs) and not len(mine.quotas._tasks))
        assert int((await other.ask()).headers["x-ratelimit-remaining-tokens"]) == 1000 - used


@pytest.mark.parametrize("lost", ["killed", "hanging", "full"])
async def test_requests_survive_a_restart_of_redis(redis_server, stack: Stack, lost: str):
    away = {"killed": redis_server.kill, "hanging": redis_server.hang, "full": redis_server.fill}
    back = {"killed": redis_server.start, "hanging": redis_server.go_on, "full": redis_server.empty}
    timeout_s = 3.0
    async with gateway(redis_server, stack, timeout_s, limits=LIMITED) as served:
        assert (await served.ask()).status_code == 200
        assert await served.degraded() == []
        away[lost]()

        took = []
        for _ in range(10):
            began = time.monotonic()
            assert (await served.ask()).status_code == 200
            assert (await served.client.put(PUT, content=b"x", headers={**TEXT, "Idempotency-Key": "k"})).is_success
            took.append(time.monotonic() - began)
        # Only the first request waited for Redis.
        assert max(took) < 2 * timeout_s
        assert sorted(took)[-2] < timeout_s
        assert await served.metric('ragtree_redis_errors_total{store="rate_limits"}') > 0
        assert await served.metric('ragtree_redis_errors_total{store="uploads"}') > 0
        # A full server still answers, so it is not degraded; refused writes are counted.
        assert await served.degraded() == ([] if lost == "full" else ["redis"])
        assert await served.metric("ragtree_redis_up") == (1 if lost == "full" else 0)

        back[lost]()
        give_up = time.monotonic() + 20
        while await served.degraded():
            assert time.monotonic() < give_up
            await asyncio.sleep(0.02)
        failed = await served.metric('ragtree_redis_errors_total{store="rate_limits"}')
        assert (await served.ask()).status_code == 200
        assert await served.metric('ragtree_redis_errors_total{store="rate_limits"}') == failed
        with redis_server.client() as client:
            assert [key for key in client.keys("*") if b":limits:" in key], "the windows must be shared again"


async def test_a_gateway_starts_without_redis(redis_server, stack: Stack):
    redis_server.kill()
    async with gateway(redis_server, stack, limits={"requests_per_minute": 2}) as served:
        assert (await served.client.get("/readyz")).status_code == 200
        assert await served.degraded() == ["redis"]
        assert [(await served.ask()).status_code for _ in range(3)] == [200, 200, 429], "limited locally"


async def test_any_gateway_reports_a_job_while_the_retriever_is_away(redis_server, stack: Stack, monkeypatch):
    async with (
        gateway(redis_server, stack, readiness_interval_s=0.02) as one,
        gateway(redis_server, stack, readiness_interval_s=0.02) as other,
    ):
        headers = {**TEXT, "Idempotency-Key": "k"}
        accepted = await one.client.put(PUT, content=b"x", headers=headers)
        assert (accepted.status_code, accepted.json()["stale"]) == (202, False)

        async def silent(tenant: str, job_id: str) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as just_gone:
            just_gone.setattr(stack.retriever, "get_job", silent)
            just_gone.setattr(uploads, "_PATIENCE_S", 0.02)
            told = await asyncio.wait_for(other.client.get("/v1/jobs/job-1"), 2)
            assert (told.status_code, told.json()["stale"]) == (200, True)

        stack.phases.failing["put"] = stack.phases.failing["retriever_ready"] = RetrieverNotReady("It restarts.")
        stack.phases.held.add("put")

        with monkeypatch.context() as restarting:
            restarting.setattr(stack.retriever, "get_job", silent)
            readiness = other.app.state.gateway.readiness
            await eventually(lambda: "retriever" in readiness.missing())
            told = await asyncio.wait_for(other.client.get("/v1/jobs/job-1"), 2)
            assert (told.status_code, told.json()) == (200, {**accepted.json(), "stale": True})
            repeated = await asyncio.wait_for(other.client.put(PUT, content=b"x", headers=headers), 2)
            assert (repeated.status_code, repeated.json()["stale"]) == (202, True)
            assert repeated.headers["location"] == accepted.headers["location"]
            stack.phases.held.clear()
            for refused in (
                await other.client.put(PUT, content=b"y", headers=headers),
                await other.client.put(PUT, content=b"x", headers=TEXT),
            ):
                assert (refused.status_code, "retry-after" in refused.headers) == (503, True)

        stack.phases.failing.clear()
        await eventually(lambda: not readiness.missing())
        told = await other.client.get("/v1/jobs/job-1")
        assert (told.json()["status"], told.json()["stale"]) == ("failed", False), "the retriever's own answer counts"
        assert (await other.client.get("/v1/jobs/job-2")).status_code == 404


async def test_second_body_with_a_running_key_is_refused(redis_server, stack: Stack):
    async with gateway(redis_server, stack) as one, gateway(redis_server, stack) as other:
        headers = {**TEXT, "Idempotency-Key": "k"}
        stack.phases.held.add("put")
        sending = asyncio.create_task(one.client.put(PUT, content=b"x", headers=headers))
        await stack.phases.reached["put"].wait()
        refused = await other.client.put(PUT, content=b"y", headers=headers)
        assert (refused.status_code, refused.json()["error"]["param"]) == (503, "Idempotency-Key")
        assert refused.headers["retry-after"]
        stack.phases.held.clear()
        stack.phases.released["put"].set()
        assert (await sending).status_code == 202
        assert len(stack.retriever.uploads) == 1


async def test_gateway_warms_up_queries_of_another(redis_server, stack: Stack):
    async with gateway(redis_server, stack) as one:
        assert (await one.ask()).status_code == 200
    async with gateway(redis_server, stack) as other:
        job = (await other.client.post("/v1/admin/cache/warm", json={"log": True})).json()
        await eventually(lambda: len(stack.controller.warmed) == 1)
        assert job["status"] in ("queued", "in_progress")
        redis_server.kill()
        give_up = time.monotonic() + 20
        while True:
            started = await other.client.post("/v1/admin/cache/warm", json={"log": True})
            if started.status_code == 202:
                break
            assert time.monotonic() < give_up
            await asyncio.sleep(0.02)
        told = started.json()
        while told["status"] in ("queued", "in_progress"):
            assert time.monotonic() < give_up
            # A blocking call would stop the event loop.
            await asyncio.sleep(0.01)
            told = (await other.client.get(f"/v1/admin/cache/warm/{told['job_id']}")).json()
        assert (told["status"], told["last_error"]["code"]) == ("failed", "unavailable")


async def test_redis_has_no_query_if_the_log_is_off(redis_server, stack: Stack):
    async with gateway(redis_server, stack, query_log_mib=0) as served:
        assert (await served.ask()).status_code == 200
    with redis_server.client() as client:
        assert client.keys("*") == []
