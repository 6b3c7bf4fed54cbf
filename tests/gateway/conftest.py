import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import structlog
import uvicorn
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from gateway_fakes import Stack, eventually
from loop_watchdog import MOST_S, LoopWatchdog
from starlette.types import ASGIApp, Receive, Scope, Send
from varied import varied

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


@pytest.fixture(autouse=True)
def loop_watchdog() -> Iterator[LoopWatchdog]:
    """Fails a test in which the gateway held its loop for long: four times what it may once it is warm."""
    with LoopWatchdog(4 * MOST_S).watching() as watchdog:
        yield watchdog
    assert not watchdog.held, "\n".join(map(str, watchdog.held))


@pytest.fixture
def stack() -> Stack:
    return Stack()


def _in_a_task_of_its_own(app: FastAPI) -> ASGIApp:
    """The app as a server runs it. Otherwise its work and the client's would be one callback of the loop."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.create_task(app(scope, receive, send))

    return served


@contextlib.asynccontextmanager
async def _in_process(stack: Stack, settings: GatewaySettings, data_dir: Path | None = None) -> AsyncIterator[Served]:
    app = create_app(stack, settings, data_dir=data_dir)
    async with LifespanManager(app):
        transport = httpx.ASGITransport(app=_in_a_task_of_its_own(app))
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
    return lambda data_dir=None, **settings: _in_process(stack, varied(GatewaySettings, **settings), data_dir)


@pytest.fixture
def over_http(stack: Stack) -> Serving:
    return lambda **settings: _over_http(stack, varied(GatewaySettings, **settings))


@pytest.fixture
async def served(in_process: Serving) -> AsyncIterator[Served]:
    async with in_process() as gateway:
        yield gateway


@pytest.fixture
async def live(over_http: Serving) -> AsyncIterator[Served]:
    async with over_http() as gateway:
        yield gateway
