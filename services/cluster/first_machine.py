"""The first machine of a stack: what stays on it, how its Ray lets others join, and how they ask it.

All machines must have the same release, and tell it to the others as labels of their Ray nodes.
"""

import os
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # public calls need a Ray node here
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import AuthenticationError, RayError

from generator.device import Device, find_device
from generator.peers.handshake import PeerKey
from generator.peers.wire import host_and_port
from generator.settings import PeerSettings
from protocol.errors import ConfigError, RagtreeError
from services.config import Config
from services.serve.replica_settings import PlacementSettings

ENGINE = "ragtree_engine"
"""Ray's resource of which each machine offers one for each instance of the engine that has room there."""

CPU_ENGINE = "ragtree_cpu_engine"
"""The same for engines that compute on CPUs, of machines without a GPU alone."""

OBJECT_STORE_BYTES = 100 * 1024 * 1024
"""Memory of each Ray node for objects. Messages between parts travel over gRPC and take none of it.

Ray's default would reserve a third of the machine's memory.
"""

_HEAD = "node:__internal_head__"
"""The resource that Ray gives the first machine alone."""

_REACHED_S = 5.0
"""How long the first machine may take to accept a connection. Ray itself would try for 40 s."""
_ANSWER_S = 10.0

_NO_KEY = "none"
_COMMON = {
    "ragtree.io/version": "RAGTree",
    "ragtree.io/ray": "Ray",
    "ragtree.io/python": "Python",
    "ragtree.io/peers-key": "the key of the peers (generator.kv.peers.key_file)",
}
"""Labels, and what they stand for in messages. A key's label is a digest."""
_RAGTREE, _RAY, _PYTHON, _KEY = _COMMON


def placed(config: Config) -> Config:
    """Return the configuration of a stack that others may join; the same one if none may.

    Engines run where there is room for them. The other parts stay on the first machine, which has their data. KV
    generators on CPUs beside generators on GPUs take no room on machines with a GPU: they would compute there.
    """
    if config.cluster.port is None:
        return config
    serving = config.serving
    on_cpus = {CPU_ENGINE: 1.0} if serving.kv_generators_on_cpus else {}
    parts = {
        "generator": _needing(serving.generator, {ENGINE: 1}),
        "kv_generators": _needing(serving.kv_generators, {ENGINE: 1, **on_cpus}),
        "gateway": _needing(serving.gateway, {_HEAD: 0.001}),
        "retriever": _needing(serving.retriever, {_HEAD: 0.001}),
        "controller": _needing(serving.controller, {_HEAD: 0.001}),
    }
    return config.model_copy(update={"serving": serving.model_copy(update=parts)})


def ray_options(config: Config) -> dict[str, Any]:
    """Return the options of ``ray.init`` for the first machine, and have Ray listen at ``cluster.port``.

    There are none if no machine may join. Raises ConfigError if the port is taken, if Ray would ask for no token, or if
    the key of the peers cannot be used.
    """
    cluster = config.cluster
    if cluster.port is None:
        return {}
    require_token("cluster.port")
    try:
        socket.create_server(("", cluster.port)).close()
    except OSError as error:
        raise ConfigError(f"Ray cannot listen on port {cluster.port}: {error.strerror}", "cluster.port") from error
    # `ray.init` has no option for it.
    os.environ["RAY_GCS_SERVER_PORT"] = str(cluster.port)
    return {
        "resources": room(cluster.engines, find_device()),
        "labels": identity_labels(config),
        **({"_node_ip_address": cluster.host} if cluster.host else {}),
    }


def room(engines: int, device: Device) -> dict[str, int]:
    """Ray's resources that a machine offers, by the number of engines that it has room for."""
    return {ENGINE: engines} if device.is_gpu else {ENGINE: engines, CPU_ENGINE: engines}


def require_token(param: str) -> None:
    """Raise ConfigError unless Ray asks callers for its token: anyone who reaches its ports runs code."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise ConfigError("machines share a stack only with RAY_AUTH_MODE=token, the default", param)


def _needing(placement: PlacementSettings, resources: dict[str, float]) -> PlacementSettings:
    return placement.model_copy(update={"resources": {**resources, **placement.resources}})


class JoinFailed(RagtreeError):
    """The machine cannot join a stack, or no longer belongs to it."""

    code = "join_failed"


class Head:
    """The first machine of a stack, at ``address``: ``host:port``, by its ``cluster.port``.

    Raises ConfigError if the address is none. Raises JoinFailed if nothing answers there, or if it refuses Ray's token
    of this machine.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise ConfigError(f"{error}, as in `ragtree join 10.0.0.1:6379`", "head") from error
        try:
            socket.create_connection((host, port), _REACHED_S).close()
        except OSError as error:
            raise JoinFailed(
                f"nothing answers at {address}: {error}. Does `ragtree up` run there with cluster.port={port}, and "
                "does the network let this machine reach it?"
            ) from error
        try:
            self._client = GcsClient(address=address)
        except AuthenticationError as error:
            raise JoinFailed(
                f"{address} refuses this machine's token: copy ~/.ray/auth_token of the first machine to the same "
                "place here, or name the copy in RAY_AUTH_TOKEN_PATH"
            ) from error
        except RayError as error:
            raise JoinFailed(f"what answers at {address} is not Ray, or not this version of it: {error}") from error

    def check(self, own: Mapping[str, str]) -> None:
        """Raise JoinFailed if a machine with these labels cannot be part of the stack."""
        first = next((node for node in self._alive() if _HEAD in node.resources_total), None)
        if first is None:
            raise JoinFailed(f"{self._address} is starting, or its Ray has no head; try again")
        reason = difference(first.labels, own)
        if reason is not None:
            raise JoinFailed(f"this machine cannot join {self._address}: {reason}")

    def has(self, node: str) -> bool:
        """Whether a node of this name belongs to the cluster now. Raises JoinFailed if the head does not answer."""
        return any(found.node_name == node for found in self._alive())

    def _alive(self) -> list[GcsNodeInfo]:
        try:
            nodes = self._client.get_all_node_info(timeout=_ANSWER_S).values()
        except RayError as error:
            raise JoinFailed(f"{self._address} does not answer any more: {error}") from error
        return [node for node in nodes if node.state == GcsNodeInfo.ALIVE]


def identity_labels(config: Config) -> dict[str, str]:
    """The labels of this machine. Raises ConfigError if the key of the peers cannot be read, or is too short."""
    return {
        _RAGTREE: version("ragtree"),
        _RAY: ray.__version__,
        _PYTHON: platform.python_version(),
        _KEY: _key_label(config.generator.kv.peers),
    }


def difference(first: Mapping[str, str], own: Mapping[str, str]) -> str | None:
    """Say what another machine has other than the ``first`` one of a stack; None if nothing that matters."""
    if _RAGTREE not in first:
        return "it is the head of a Ray that `ragtree up` has not started"
    for label, what in _COMMON.items():
        there, here = first.get(label), own[label]
        if there == here:
            continue
        if label != _KEY:
            return f"it has {what} {there}, and this machine has {here}"
        if _NO_KEY in (there, here):
            return f"only {'this machine' if there == _NO_KEY else 'the first machine'} has {what}"
        return f"it has another secret as {what}"
    return None


def _key_label(peers: PeerSettings) -> str:
    secret = peers.key()
    return _NO_KEY if secret is None else PeerKey(secret).fingerprint
