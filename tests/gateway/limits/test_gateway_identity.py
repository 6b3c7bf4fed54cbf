"""What strangers may do, and what one caller leaves to the others."""

import asyncio

import pytest
from gateway_fakes import eventually
from gateway_requests import bearer, pieces

from gateway.limits.room import Room
from gateway.settings import ApiKey
from protocol.errors import Overloaded, RateLimited

KEYS = (ApiKey(secret="sk-one", tenant="default"), ApiKey(secret="sk-two", tenant="default"))
DOCUMENT = "/v1/collections/default/documents/d"
TEXT = {"Content-Type": "text/plain"}
KIB = 1024


async def test_strangers_reach_only_the_routes_that_take_no_key(in_process):
    async with in_process(api_keys=KEYS, admin_key="sk-admin") as served:
        routes = [(method, route) for route in served.app.routes for method in getattr(route, "methods", None) or ()]
        described = (await served.client.get("/openapi.json")).json()["paths"]
        for method, route in routes:
            takes_key = "401" in described.get(route.path_format, {}).get(method.lower(), {}).get("responses", ())
            path = route.path_format.replace("{", "").replace("}", "")
            for headers in ({}, bearer("guess")):
                answer = await served.client.request(method, path, headers=headers)
                assert (answer.status_code == 401) == takes_key, (method, path)


@pytest.mark.parametrize("key", [None, "guess", "sk-admin"])
async def test_a_refused_key_asks_no_window_and_reads_no_body(in_process, monkeypatch, key: str | None):
    async with in_process(api_keys=KEYS, admin_key="sk-admin", limits={"requests_per_minute": 9}) as served:
        windows = served.app.state.gateway.stores.windows
        monkeypatch.setattr(windows, "take", None)
        monkeypatch.setattr(windows, "standing", None)

        async def body():
            raise AssertionError("it is read")
            yield b""

        answer = await served.client.put(DOCUMENT, content=body(), headers=TEXT | bearer(key))
        assert answer.status_code == 401


async def test_strangers_have_room_of_their_own(in_process, monkeypatch):
    monkeypatch.setattr("gateway.middleware.request_limits.MOST_OF_STRANGERS", 0)
    async with in_process(api_keys=KEYS) as served:
        for path in ("/", "/page/main.js", "/docs", "/openapi.json"):
            refused = await served.client.get(path)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert (await served.client.get(path, headers=bearer("sk-one"))).status_code == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await served.client.get(path)).status_code == 200


async def test_strangers_who_wait_for_readiness_wait_for_one_check(in_process):
    async with in_process(api_keys=KEYS, readiness_interval_s=60) as served:
        served.stack.phases.held.add("engine_ready")
        asking = [asyncio.create_task(served.client.get("/readyz")) for _ in range(20)]
        await eventually(lambda: served.stack.phases.waiting["engine_ready"] > 0)
        assert served.stack.phases.waiting["engine_ready"] == 1
        served.stack.phases.released["engine_ready"].set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize("bound", ["max_open_requests", "max_concurrent_queries"])
async def test_a_key_leaves_room_for_others(in_process, bound: str):
    async with in_process(api_keys=KEYS, **{bound: 8}) as served:
        served.stack.phases.held.add("prefill")

        def ask(key: str) -> asyncio.Task:
            return asyncio.create_task(served.client.post("/query", json={"query": "x"}, headers=bearer(key)))

        asking = [ask("sk-one") for _ in range(8)]
        await eventually(lambda: sum(task.done() for task in asking) == 4)
        assert {task.result().status_code for task in asking if task.done()} == {429}
        other = ask("sk-two")
        await eventually(lambda: served.stack.phases.waiting["prefill"] == 5)
        served.stack.phases.released["prefill"].set()
        assert (await other).status_code == 200
        await asyncio.gather(*asking)


@pytest.mark.parametrize("keys", [(), KEYS[:1]])
async def test_a_caller_without_others_has_all(in_process, keys):
    async with in_process(api_keys=keys, max_open_requests=8) as served:
        served.stack.phases.held.add("prefill")
        headers = bearer("sk-one")
        asking = [
            asyncio.create_task(served.client.post("/query", json={"query": "x"}, headers=headers)) for _ in range(8)
        ]
        await eventually(lambda: served.stack.phases.waiting["prefill"] == 8)
        served.stack.phases.released["prefill"].set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}


async def test_a_key_leaves_memory_for_the_bodies_of_others(in_process):
    sizes = {"max_document_bytes": 64 * KIB, "max_query_chars": 128, "max_bodies_bytes": 100 * KIB}
    async with in_process(api_keys=KEYS, **sizes) as served:
        served.stack.phases.held.add("put")

        def put(key: str, kib: int) -> asyncio.Task:
            content = pieces(kib, KIB)
            return asyncio.create_task(served.client.put(DOCUMENT, content=content, headers=TEXT | bearer(key)))

        held = [put("sk-one", 30), put("sk-one", 20)]
        await eventually(lambda: served.stack.phases.waiting["put"] == 2)
        refused = await put("sk-one", 10)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        held.append(put("sk-two", 49))
        await eventually(lambda: served.stack.phases.waiting["put"] == 3)
        assert (await put("sk-two", 2)).status_code in (429, 503)
        served.stack.phases.held.clear()
        served.stack.phases.released["put"].set()
        assert {(await sending).status_code for sending in held} == {202}
        assert (await put("sk-one", 60)).status_code == 202, "alone, a body is bounded by the total"


async def test_a_trickling_body_is_given_up_long_before_its_time(over_http):
    async with over_http(body_timeout_s=5, max_query_chars=12_500) as live:
        host, port = live.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT {DOCUMENT} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 9999\r\n\r\n"
        writer.write(head.encode())

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        began = asyncio.get_running_loop().time()
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 10)
        assert asyncio.get_running_loop().time() - began < 2.5
        trickling.cancel()
        writer.close()


def test_room_is_shared_by_all_who_want_it():
    room = Room("things", 12, fair=True)

    def fill(owner: str) -> int:
        taken = 0
        while True:
            try:
                room.take(owner)
            except (RateLimited, Overloaded):
                return taken
            taken += 1

    assert fill("a") == 6
    assert fill("b") == 3
    assert fill("a") == 0
    assert room.held == 9
    with pytest.raises(RateLimited):
        room.take("a")
    room.give_back("a", 6)
    assert room.held == 3
    with pytest.raises(Overloaded):
        room.take("c", 10)
    room.take("c", 9)


def test_a_caller_that_holds_nothing_is_bounded_by_the_total_only():
    room = Room("bytes", 100, fair=True)
    room.take("a", 60)
    room.take("a", 30, same=60)
    with pytest.raises(RateLimited):
        room.take("a", 5)
    with pytest.raises(Overloaded):
        room.take("b", 11)
    room.take("b", 10)
