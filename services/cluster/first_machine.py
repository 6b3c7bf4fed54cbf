"""The first machine of a stack: what stays on it, and how its Ray lets others join."""

import os
import socket
from typing import Any

from generator.device import Device, find_device
from protocol.errors import ConfigError
from services.cluster.head import identity_labels
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

_HEAD = {"node:__internal_head__": 0.001}
"""A little of the resource that Ray gives the first machine alone."""


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
        "gateway": _needing(serving.gateway, _HEAD),
        "retriever": _needing(serving.retriever, _HEAD),
        "controller": _needing(serving.controller, _HEAD),
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
