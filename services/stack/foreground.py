"""A stack in the making: Ray, the Serve applications, and the gateway in front of them, run by one process."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import ray
import structlog
import uvicorn
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation

from protocol.errors import ConfigError, RagtreeError
from protocol.parts import Controller
from services.app import build_app, build_ingress, build_parts, connect_controller
from services.config import Config, ServerSettings
from services.model import kv_settings
from services.shards import shard_folders
from services.stack.http_protocol import BoundedHttpProtocol
from services.stack.run_state import RunState

log = structlog.get_logger(__name__)

OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Messages between parts are kilobytes and travel inline; Ray's default would take a third of the memory."""


STALLED_MS = 60_000
"""How long a client's machine may acknowledge nothing, or take nothing in, before its connection is cut.

Without it a client that stops reading keeps its query, and one whose machine is gone, for as long as the kernel likes.
"""

PERSIST_S = 30.0
"""How long the stop of a stack may take for what is cached in memory."""


class Stack:
    """Runs one stack in the foreground until it is told to stop.

    The gateway answers as soon as Ray is up: until the model is loaded it says 503, and why. A model that is not yet on
    this machine is fetched before that, since prompts are laid out with its tokenizer.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._state = RunState(config.data_dir)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, then stop everything that was started.

        Raises Conflict when another stack owns the data folder, ConfigError when the port cannot be had, or the folder
        was filled with another number of shards.
        """
        signal.signal(signal.SIGTERM, _interrupt)
        # All that is written from here on, in Ray's processes too, holds documents or, as Ray's token, lets run code.
        os.umask(0o077)
        with self._state.claimed(), _listening_socket(self._config.server) as listener:
            shard_folders(self._config).claim()
            try:
                if self._config.server.ingress == "serve":
                    self._run_behind_serve(listener)
                else:
                    self._run_beside_serve(listener)
            except KeyboardInterrupt:
                log.info("stopping")
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                _stop_ray()
                # Memory, though it looks like a file: a stack that stops in order leaves none of it behind.
                kv_settings(self._config).discard_host_memory()

    def _run_beside_serve(self, listener: socket.socket) -> None:
        self._start_ray()
        serve.start(proxy_location=ProxyLocation.Disabled)
        _deploy(build_parts(self._config))
        asyncio.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        url = _url(listener)
        # Handles belong to the event loop that they are made in.
        server = _Server(
            uvicorn.Config(
                build_app(self._config),
                http=BoundedHttpProtocol,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=10,
            ),
            on_started=lambda: self._publish(url),
        )
        log.info("the gateway listens; it answers queries once the model is loaded", url=url)
        controller = connect_controller()
        try:
            await server.serve(sockets=[listener])
        finally:
            # Once it has stopped, uvicorn passes a Ctrl-C on, which cancels this task where it waits next: here, not
            # in the middle of what there is still to do.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            if self._config.controller.persist:
                await _persist(controller)
            await serve.shutdown_async()

    def _run_behind_serve(self, listener: socket.socket) -> None:
        url = _url(listener)
        host, port = listener.getsockname()[:2]
        # Serve's proxy, a process of its own, binds the port itself; that it can be had is known by now.
        listener.close()
        self._start_ray()
        serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=HTTPOptions(host=host, port=port))
        _deploy(build_parts(self._config))
        _deploy([build_ingress(self._config)])
        self._publish(url)
        log.info("Ray Serve's proxy listens; it answers queries once the model is loaded", url=url)
        while True:
            signal.pause()

    def _start_ray(self) -> None:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level="WARNING",
        )
        # Ray takes the handler for itself when it starts.
        signal.signal(signal.SIGTERM, _interrupt)

    def _publish(self, url: str) -> None:
        self._state.publish(url, ray.get_runtime_context().gcs_address)


class _Server(uvicorn.Server):
    """uvicorn, telling when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


async def _persist(controller: Controller) -> None:
    """Have what engines keep on disk before they stop; a stack that cannot stops all the same."""
    try:
        async with asyncio.timeout(PERSIST_S):
            await controller.ready()
            await controller.persist()
    except (RagtreeError, TimeoutError) as error:
        log.warning("what is cached in memory is not kept", reason=str(error) or "it took too long")


def _deploy(targets: list[serve.RunTarget]) -> None:
    # Not until they run: the gateway is to say meanwhile what is still missing.
    serve.run_many(targets, wait_for_applications_running=False)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _listening_socket(server: ServerSettings) -> socket.socket:
    """Take the port before anything slow is started. Raises ConfigError when it is taken."""
    try:
        listener = socket.create_server((server.host, server.port), backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {server.host}:{server.port}: {error.strerror}", "server.port") from error
    # asyncio sets it on sockets that it made itself alone; without it a reply's body waits for its headers' receipt.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    return listener


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stop_ray() -> None:
    if ray.is_initialized():
        # Serve first: it lets replicas end their streams and give their engines back.
        serve.shutdown()
        ray.shutdown()
