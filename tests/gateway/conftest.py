import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import structlog
import uvicorn
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from gateway_fakes import Stack, eventually

from gateway.app import create_app
from gateway.settings import GatewaySettings


@dataclass
class Served:
    """The gateway under test, with its fakes, app and client."""

    stack: Stack
    app: FastAPI
    client: httpx.AsyncClient
    url: str

    @property
    def running(self) -> int:
        return len(self.app.state.gateway.runs)


@pytest.fixture(autouse=True)
def plain_tracebacks() -> None:
    """Log errors with plain tracebacks: structlog's default takes a second to render all local variables."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
        ]
    )


@pytest.fixture
def stack() -> Stack:
    return Stack()


@contextlib.asynccontextmanager
async def _in_process(stack: Stack, settings: GatewaySettings, data_dir: Path | None = None) -> AsyncIterator[Served]:
    app = create_app(stack, settings, data_dir=data_dir)
    async with LifespanManager(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield Served(stack, app, client, "http://gateway")


@contextlib.asynccontextmanager
async def _over_http(stack: Stack, settings: GatewaySettings) -> AsyncIterator[Served]:
    app = create_app(stack, settings)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await eventually(lambda: server.started or serving.done())
            async with httpx.AsyncClient(base_url=url, timeout=20) as client:
                yield Served(stack, app, client, url)
        finally:
            server.should_exit = True
            await serving


Serving = Callable[..., contextlib.AbstractAsyncContextManager[Served]]


@pytest.fixture
def in_process(stack: Stack) -> Serving:
    return lambda data_dir=None, **settings: _in_process(stack, GatewaySettings(**settings), data_dir)


@pytest.fixture
def over_http(stack: Stack) -> Serving:
    return lambda **settings: _over_http(stack, GatewaySettings(**settings))


@pytest.fixture
async def served(in_process: Serving) -> AsyncIterator[Served]:
    async with in_process() as gateway:
        yield gateway


@pytest.fixture
async def live(over_http: Serving) -> AsyncIterator[Served]:
    async with over_http() as gateway:
        yield gateway
