"""The gateway on its own server against clients without a key, and against slow ones. Fakes of the other parts."""

import asyncio
import resource
import socket
import threading
import time
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from gateway_fakes import Stack, eventually
from gateway_requests import bearer, pieces

from gateway.app import create_app
from gateway.middleware.slow_readers import SlowReaders
from gateway.settings import ApiKey, GatewaySettings
from services.config import ServerSettings
from services.stack import foreground, http_protocol
from services.stack.connections import Connections
from services.stack.http_protocol import BoundedHttpProtocol

KEYS = (ApiKey(secret="sk-one", tenant="default"), ApiKey(secret="sk-two", tenant="default"))
DOCUMENT = "/v1/collections/default/documents/d"
KIB = 1024
PUT = f"PUT {DOCUMENT} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n".encode()


class Served:
    """A gateway with its fakes, and a client with a key."""

    def __init__(self, stack: Stack, address: tuple[str, int], client: httpx.AsyncClient) -> None:
        self.stack = stack
        self.address = address
        self.client = client

    async def answered(self, *sent: bytes) -> bytes:
        """Everything that the server sends before it closes the connection."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            async with asyncio.timeout(20):
                for part in sent:
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
        finally:
            writer.close()

    async def slowest_s(self) -> float:
        """The longest time of a few queries and uploads with a key, all of which have to succeed."""
        slowest = 0.0
        for _ in range(10):
            began = time.monotonic()
            assert (await self.client.post("/query", json={"query": "x"})).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            began = time.monotonic()
            put = await self.client.put(DOCUMENT, content=b"x" * 64 * KIB, headers={"Content-Type": "text/plain"})
            assert put.status_code == 202, put.text
            slowest = max(slowest, time.monotonic() - began)
        return slowest


@asynccontextmanager
async def listening(app):
    with foreground._listening_socket(ServerSettings(port=0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=BoundedHttpProtocol, log_config=None))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await eventually(lambda: server.started)
            yield listener.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            await serving


@asynccontextmanager
async def serving(**settings):
    stack = Stack()
    app = create_app(stack, GatewaySettings(**{"api_keys": KEYS} | settings))
    async with listening(app) as address:
        url = f"http://{address[0]}:{address[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=bearer("sk-one")) as client:
            yield Served(stack, address, client)


def crowd(address: tuple[str, int], count: int, body: bytes) -> list[socket.socket]:
    """So many clients without a key that declare a body of 255 KiB and send a part of it."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(address)
        clients.append(client)
        client.setblocking(False)
        with suppress(OSError):
            client.send(PUT + b"Content-Length: 261120\r\n\r\n" + body)
    return clients


@pytest.mark.parametrize(("count", "size"), [(1020, 255 * KIB), (4100, 1)])
async def test_a_crowd_without_keys_takes_nothing_from_callers(count: int, size: int):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of each connection are in this process.
    if soft < 2 * count + 500:
        pytest.skip("too few files may be open")
    async with serving() as served:
        arrived: list[socket.socket] = []
        arriving = threading.Thread(target=lambda: arrived.extend(crowd(served.address, count, b"x" * size)))
        arriving.start()
        while arriving.is_alive():
            # Their time is that of the crowd's own requests, of which there is an end.
            await served.slowest_s()
        assert len(arrived) == count
        assert await served.slowest_s() < 2.0
        for client in arrived:
            client.close()
        assert {len(upload.content) for _, _, upload, _ in served.stack.retriever.uploads} == {64 * KIB}


@pytest.mark.parametrize("head", [PUT, PUT + b"Authorization: Bearer guess\r\n"])
async def test_a_stranger_is_refused_before_a_byte_of_the_body(head: bytes):
    async with serving() as served:
        told = await served.answered(head + b"Expect: 100-continue\r\nContent-Length: 33554432\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in told.lower()
        assert b"100 Continue" not in told


@pytest.mark.parametrize("framing", [b"Content-Length: 400000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
async def test_an_unread_body_is_not_the_next_request(framing: bytes):
    async with serving() as served:
        next_one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        told = await served.answered(PUT + framing + next_one * 100)
        assert told.count(b"HTTP/1.1 ") == 1
        assert told.startswith(b"HTTP/1.1 40")


@pytest.mark.parametrize(("key", "status"), [("sk-other", 401), ("sk-one", 413)])
@pytest.mark.parametrize("declared", [True, False])
async def test_a_client_that_sends_on_gets_its_refusal(key: str, status: int, declared: bool):
    async with serving(max_document_bytes=512 * KIB) as served:
        content = b"x" * 4096 * KIB if declared else pieces(4096, KIB)
        answer = await served.client.put(DOCUMENT, content=content, headers=bearer(key))
        assert (answer.status_code, answer.headers["connection"]) == (status, "close")


async def test_a_client_that_sends_on_and_on_is_cut_off():
    async with serving() as served:
        _, writer = await asyncio.open_connection(*served.address)
        writer.write(PUT + b"Content-Length: 33554432\r\n\r\n")

        async def send_all() -> None:
            for _ in range(512):
                writer.write(b"x" * 64 * KIB)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await send_all()
        writer.close()


@pytest.mark.parametrize(
    "request_line",
    [b"GET /v1/models", b"HEAD /query", b"OPTIONS /query", b"POST /healthz", b"DELETE /metrics", b"GET /unknown"],
)
@pytest.mark.parametrize("extra", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"])
async def test_no_method_and_no_upgrade_lets_a_stranger_in(request_line: bytes, extra: bytes):
    async with serving() as served:
        closing = b"" if extra else b"Connection: close\r\n"
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(request_line + b" HTTP/1.1\r\nHost: x\r\n" + closing + extra + b"\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 401")
        writer.close()


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["new", "kept"])
async def test_a_head_that_trickles_ends_its_connection(monkeypatch, start: bytes):
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.3)
    async with serving() as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(start)
        if start:
            await asyncio.wait_for(reader.readuntil(b"}"), 20)

        async def trickle() -> None:
            for byte in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"x" * 10_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        trickling.cancel()
        writer.close()


async def test_silent_connections_make_place_for_new_ones_but_requests_are_kept(monkeypatch):
    monkeypatch.setattr(BoundedHttpProtocol, "open_connections", Connections(20))
    async with serving() as served:
        served.stack.phases.held.add("prefill")
        asking = asyncio.create_task(served.client.post("/query", json={"query": "x"}))
        await eventually(lambda: served.stack.phases.waiting["prefill"] == 1)
        silent = [await asyncio.open_connection(*served.address) for _ in range(60)]
        ended = asyncio.gather(*(reader.read() for reader, _ in silent[:40]), return_exceptions=True)
        await asyncio.wait_for(ended, 10)
        assert (await served.client.get("/v1/models")).status_code == 200
        assert len(BoundedHttpProtocol.open_connections) <= 20
        served.stack.phases.released["prefill"].set()
        assert (await asking).status_code == 200
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        PUT + b"Authorization: Bearer sk-one\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10_000,
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-one\r\n\r\n" * 1000,
    ],
    ids=["headers", "chunks of one byte", "pipelined"],
)
async def test_many_small_things_end_the_connection(sent: bytes):
    async with serving() as served:
        assert b"HTTP/1.1 400" in await served.answered(sent)
        assert (await served.client.get("/v1/models")).status_code == 200


async def test_a_large_reply_is_open_until_it_is_read():
    content = bytes(range(256)) * 32 * KIB
    ended = asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        try:
            head = [(b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": content})
        finally:
            ended.set()

    async with listening(SlowReaders(app, 0.5)) as address:
        reader, writer = await asyncio.open_connection(*address, limit=KIB)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert not ended.is_set()
        await asyncio.wait_for(ended.wait(), 10)
        writer.close()
        async with httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}") as client:
            assert (await client.get("/")).content == content
