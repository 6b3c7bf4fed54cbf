"""The gateway's server against clients that make it hold too much data. Sockets only, no stack."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import uvicorn

from services.config import ServerSettings
from services.stack import foreground
from services.stack.http_protocol import MOST_UNREAD_BYTES, BoundedHttpProtocol


async def echo(scope, receive, send):
    """Respond with the body's length."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    content = json.dumps([scope["method"], size]).encode()
    head = [(b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def listening(app=echo):
    with foreground._listening_socket(ServerSettings(port=0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=BoundedHttpProtocol, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            await serving


async def answered(address, *sent: bytes) -> bytes:
    """Return everything that the server sends before it closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(20):
            for part in sent:
                writer.write(part)
                await writer.drain()
            return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PARTS = [b"x" * 16_384] * 64


@pytest.mark.parametrize(
    "sent",
    [
        [b"GET /", *PARTS],
        [b"GET / HTTP/1.1\r\nX-Long: ", *PARTS],
        [b"GET / HTTP/1.1\r\n", *[b"X-Many: 1\r\n" * 1000] * 100],
        [CHUNKED + b"1\r\nx\r\n0\r\nX-Trailer: ", *PARTS],
        [CHUNKED + b"1;", *PARTS],
    ],
    ids=["line", "header", "headers", "trailer", "chunk extension"],
)
async def test_server_closes_a_connection_with_an_endless_head(sent):
    async with listening() as address:
        told = await answered(address, *sent)
        assert told == b"reset" or told.startswith(b"HTTP/1.1 400")


async def test_server_accepts_long_heads_and_bodies():
    async with listening() as address:
        head = HEAD + b"X-Long: " + b"x" * (MOST_UNREAD_BYTES - 1000) + b"\r\nContent-Length: 1048576\r\n\r\n"
        assert (await answered(address, head, *PARTS)).endswith(b'["POST", 1048576]')
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in PARTS]
        assert (await answered(address, CHUNKED, *chunks, b"0\r\n\r\n")).endswith(b'["POST", 1048576]')


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X: y\r\n folded: z\r\n",
        b"X: a\x00b\r\n",
        b"X: a\rContent-Length: 4\r\n",
    ],
)
async def test_server_refuses_ambiguous_requests(head):
    """A proxy that reads another length would let a second request be smuggled in."""
    async with listening() as address:
        told = await answered(address, HEAD + head + b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 400")
        assert b"GET" not in told


async def test_server_drops_a_client_that_stops_reading(monkeypatch):
    monkeypatch.setattr(foreground, "STALLED_MS", 500)
    ended = asyncio.Event()

    async def endless(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while (await asyncio.wait_for(receive(), 0.001))["type"] != "http.disconnect":
                pass
        except TimeoutError:
            pass
        leaving = asyncio.create_task(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        ended.set()

    async with listening(endless) as address:
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(ended.wait(), 20)
        writer.close()
