"""Memory and time limits of slow uploads and of clients that do not read."""

import asyncio

import pytest
from fastapi import HTTPException
from gateway_fakes import eventually
from gateway_requests import pieces
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.middleware.request_limits import BodyLimit
from gateway.settings import GatewaySettings

DOCUMENT = "/v1/collections/default/documents/d"
KIB = 1024


async def sending(url: str, declared: int, sent: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An upload whose client stops halfway."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT {DOCUMENT} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: {declared}\r\n\r\n"
    writer.write(head.encode() + b"x" * sent)
    await writer.drain()
    return reader, writer


async def status_of(reader: asyncio.StreamReader) -> int:
    return int((await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).split(b" ", 2)[1])


SMALL = {"max_document_bytes": 64 * KIB, "max_query_chars": 128, "max_bodies_bytes": 64 * KIB}
TEXT = {"Content-Type": "text/plain"}


async def test_total_of_bodies_is_limited(over_http):
    async with over_http(**SMALL) as live:
        held = [await sending(live.url, 40 * KIB, 30 * KIB)]
        await eventually(lambda: _held(live) >= 30 * KIB)
        refused = await live.client.put(DOCUMENT, content=b"x" * 60 * KIB, headers=TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"]
        # A declared body is refused before it is sent, an undeclared one while it is sent.
        reader, writer = await sending(live.url, 60 * KIB, 0)
        held.append((reader, writer))
        assert await status_of(reader) == 503
        undeclared = await live.client.put(DOCUMENT, content=pieces(60, KIB), headers=TEXT)
        assert (undeclared.status_code, undeclared.json()["error"]["code"]) == (503, "overloaded")
        assert (await live.client.put(DOCUMENT, content=b"x" * KIB, headers=TEXT)).status_code == 202, "this one fits"
        for _, writer in held:
            writer.close()
        await eventually(lambda: _held(live) == 0)
        assert (await live.client.put(DOCUMENT, content=b"x" * 60 * KIB, headers=TEXT)).status_code == 202


async def test_declared_but_unsent_bytes_do_not_count(over_http):
    async with over_http(**SMALL) as live:
        clients = [await sending(live.url, 60 * KIB, 0) for _ in range(5)]
        assert (await live.client.put(DOCUMENT, content=b"x" * 60 * KIB, headers=TEXT)).status_code == 202
        for _, writer in clients:
            writer.close()


async def test_slow_body_times_out(over_http):
    async with over_http(body_timeout_s=0.2) as live:
        reader, writer = await sending(live.url, 10, 5)
        assert await status_of(reader) == 408
        writer.close()
        await eventually(lambda: _held(live) == 0)


def _held(live) -> int:
    layer = live.app.middleware_stack
    while not isinstance(layer, BodyLimit):
        layer = getattr(layer, "_app", None) or layer.app
    return layer._room.held


@pytest.mark.parametrize("chat", [False, True])
async def test_client_that_does_not_read_is_cancelled(over_http, chat: bool):
    async with over_http(send_timeout_s=0.3, limits={"concurrent_queries": 1}) as live:
        words = 200
        # More than all buffers between server and client hold.
        live.stack.generator.words = tuple("x" * 100_000 for _ in range(words))
        host, port = live.url.removeprefix("http://").split(":")
        _unread, writer = await asyncio.open_connection(host, int(port), limit=KIB)
        body = (
            b'{"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": true}'
            if chat
            else b'{"query": "x", "stream": true}'
        )
        path = "/v1/chat/completions" if chat else "/query"
        with capture_logs() as logs:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            await eventually(lambda: live.running == 0 and live.stack.generator.calls["closed"] == 1)
            await eventually(lambda: any(line["event"] == "client_does_not_read" for line in logs))
        live.stack.generator.words = ("ok",)
        answer = await live.client.post("/query", json={"query": "x"})
        assert answer.status_code == 200, "its slot must be free again"
        writer.close()


async def test_body_in_one_piece_counts():
    answered = asyncio.Event()

    async def reads(scope, receive, send) -> None:
        await receive()
        await answered.wait()

    async def sent(kib: int) -> None:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"x" * kib * KIB, "more_body": False}

        await limit({"type": "http", "path": DOCUMENT, "headers": []}, receive, None)

    limit = BodyLimit(reads, GatewaySettings(**SMALL), GatewayMetrics(CollectorRegistry()))
    first = asyncio.create_task(sent(30))
    await eventually(lambda: limit._room.held == 30 * KIB)
    with pytest.raises(HTTPException) as refused:
        await sent(60)
    assert refused.value.status_code == 503
    answered.set()
    await first
    await sent(60)
