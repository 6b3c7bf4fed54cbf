"""Runs a stack in the current process: Ray, the Serve applications, and the gateway in front of them."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import ray
import structlog
import uvicorn
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.util import get_node_ip_address

from protocol.errors import ConfigError, RagtreeError
from protocol.parts import Controller
from services.app import build_app, build_ingress, build_parts, connect_controller
from services.cluster.first_machine import OBJECT_STORE_BYTES, placed, ray_options
from services.config import Config, ServerSettings
from services.model import kv_settings
from services.stack.http_protocol import BoundedHttpProtocol
from services.stack.ray_start import start_ray
from services.stack.run_state import RunState

log = structlog.get_logger(__name__)

STALLED_MS = 60_000
"""How long a client may acknowledge nothing, or accept no data, before its connection is closed.

Without this limit, a client that stops reading keeps its query. A client whose machine is gone keeps it until the
kernel gives up.
"""

PERSIST_S = 30.0
"""How long stopping a stack may take to save KV from memory to disk."""


class Stack:
    """Runs one stack in the foreground until it is told to stop.

    The gateway answers as soon as Ray is up. Until the model is loaded it answers 503 with the reason. A model that is
    not on this machine is downloaded first, because the prompt layout needs its tokenizer.
    """

    def __init__(self, config: Config) -> None:
        self._config = placed(config)
        self._state = RunState(config.data_dir)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, then stop everything that was started.

        Raises Conflict if another stack owns the data folder. Raises ConfigError if the port is taken, or if the folder
        was filled with another number of shards.
        """
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Files written from here on, also by Ray's processes, contain documents, or a token that lets others run code.
        os.umask(0o077)
        with self._state.claimed(), _listening_socket(self._config.server) as listener:
            self._config.shard_folders.record_count()
            try:
                if self._config.server.ingress == "serve":
                    self._run_behind_serve(listener)
                else:
                    self._run_beside_serve(listener)
            except KeyboardInterrupt:
                log.info("stopping")
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                kv = kv_settings(self._config, get_node_ip_address())
                _stop_ray()
                # The host tier is shared memory that looks like a file. An orderly stop frees it.
                kv.discard_host_memory()

    def _run_beside_serve(self, listener: socket.socket) -> None:
        self._start_ray()
        serve.start(proxy_location=ProxyLocation.Disabled)
        _deploy(build_parts(self._config))
        asyncio.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        url = _url(listener)
        # Handles belong to the event loop that creates them.
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
        log.info("the gateway is listening; it answers queries once the model is loaded", url=url)
        controller = connect_controller(self._config)
        try:
            await server.serve(sockets=[listener])
        finally:
            # After it has stopped, uvicorn raises the Ctrl-C again, which cancels this task at its next await. Let that
            # happen here, and not in the middle of the work below.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            if self._config.controller.persist:
                await _persist(controller)
            await serve.shutdown_async()

    def _run_behind_serve(self, listener: socket.socket) -> None:
        url = _url(listener)
        host, port = listener.getsockname()[:2]
        # Serve's proxy is a separate process and binds the port itself. By now the port is known to be free.
        listener.close()
        self._start_ray()
        serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=HTTPOptions(host=host, port=port))
        _deploy(build_parts(self._config))
        _deploy([build_ingress(self._config)])
        self._publish(url)
        log.info("Ray Serve's proxy is listening; it answers queries once the model is loaded", url=url)
        while True:
            signal.pause()

    def _start_ray(self) -> None:
        start_ray({"object_store_memory": OBJECT_STORE_BYTES, **ray_options(self._config)})
        # Ray installs its own handler when it starts.
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def _publish(self, url: str) -> None:
        self._state.publish(url, ray.get_runtime_context().gcs_address)


class _Server(uvicorn.Server):
    """A uvicorn server that calls ``on_started`` once it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # The collector would look at all that was imported and built again and again, and hold the loop meanwhile.
            gc.collect()
            gc.freeze()
            self._on_started()


async def _persist(controller: Controller) -> None:
    """Save the engines' KV to disk before they stop. If that fails, the stack still stops."""
    try:
        async with asyncio.timeout(PERSIST_S):
            await controller.ready()
            await controller.persist()
    except (RagtreeError, TimeoutError) as error:
        log.warning("KV in memory was not saved to disk", reason=str(error) or "it took too long")


def _deploy(targets: list[serve.RunTarget]) -> None:
    # Do not wait for the applications: meanwhile the gateway reports what is missing.
    serve.run_many(targets, wait_for_applications_running=False)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def _listening_socket(server: ServerSettings) -> socket.socket:
    """Bind the port before anything slow is started. Raises ConfigError if it is taken."""
    try:
        listener = socket.create_server((server.host, server.port), backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {server.host}:{server.port}: {error.strerror}", "server.port") from error
    # asyncio sets this only on sockets that it creates. Without it, a reply's body waits for the acknowledgement of its
    # headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    return listener


def _stop_ray() -> None:
    if ray.is_initialized():
        # Serve first: it lets replicas finish their streams and close their engines.
        serve.shutdown()
        ray.shutdown()
