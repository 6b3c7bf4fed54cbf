"""Writes the stack as a Ray Serve config file, for ``serve run``, ``serve deploy`` and a RayService on Kubernetes."""

from typing import Any

import yaml

from services.config import Config
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
