"""The stack as a Ray Serve config file, for ``serve run``, ``serve deploy`` and a RayService on Kubernetes.

The applications have the names that the file uses: ``import_path: services.serving:generator``.

Each reads the configuration of its own container (``RAGTREE_CONFIG`` and the environment), so the file holds no
options. ``ragtree config render`` writes the file.
"""

from typing import Any

import yaml
from pydantic import BaseModel
from ray import serve

from services.app import build_app
from services.config import Config, load_config
from services.serve import applications
from services.serve.applications import (
    CONTROLLER,
    GATEWAY,
    GENERATOR,
    RETRIEVER,
    controller_names,
    deployment_options,
    kv_generator_names,
    retriever_names,
)

_HEADER = """\
# The stack as Ray Serve applications. Written by `ragtree config render`; change options there, not here.
# Each application reads RAGTREE_CONFIG and RAGTREE_... of its own machine or container.
"""


def render(config: Config) -> str:
    """Return the file's text, as YAML."""
    return _HEADER + yaml.safe_dump(serve_config(config), sort_keys=False)


def serve_config(config: Config) -> dict[str, Any]:
    """Return the file's content. Proxies run on every node that has a replica, on the gateway's address."""
    applications = [
        *(_application(config, name, RETRIEVER, shard) for shard, name in enumerate(retriever_names(config))),
        *(_application(config, name, CONTROLLER, shard) for shard, name in enumerate(controller_names(config))),
        _application(config, GENERATOR, GENERATOR),
        *(_application(config, name, name) for name in kv_generator_names(config)),
        {**_application(config, GATEWAY, GATEWAY), "route_prefix": "/"},
    ]
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": config.server.host, "port": config.server.port},
        "logging_config": {"log_level": "WARNING", "enable_access_log": False},
        "applications": applications,
    }


def _application(config: Config, name: str, builder: str, shard: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "route_prefix": None,
        "import_path": f"services.serving:{builder}",
        "args": {} if name == builder else {"shard": shard},
        "deployments": [deployment_options(config, name)],
    }


class NoArguments(BaseModel, extra="forbid"):
    """Arguments of an application that takes none."""


class ShardArguments(BaseModel, extra="forbid"):
    """Arguments of the retriever and the controller: the number of the ``shard``."""

    shard: int = 0


def retriever(arguments: ShardArguments) -> serve.Application:
    """The retriever, or one shard of it."""
    return applications.retriever_application(load_config(), arguments.shard)


def controller(arguments: ShardArguments) -> serve.Application:
    """The cache controller, or one shard of it."""
    return applications.controller_application(load_config(), arguments.shard)


def generator(_arguments: NoArguments) -> serve.Application:
    """The generator, with all its instances."""
    return applications.generator_application(load_config())


def kv_generator(_arguments: NoArguments) -> serve.Application:
    """The instances that only generate KV."""
    return applications.kv_generator_application(load_config())


def gateway(_arguments: NoArguments) -> serve.Application:
    """The gateway behind Serve's proxy."""
    return applications.gateway_application(load_config(), build_app)
