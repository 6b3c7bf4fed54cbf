"""The applications under the names that a Ray Serve config file uses: ``import_path: services.serving:generator``.

Each reads the configuration of its own container (``RAGTREE_CONFIG`` and the environment), so the file holds no
options. ``ragtree config render`` writes the file.
"""

from pydantic import BaseModel, ConfigDict
from ray import serve

from services.app import build_app
from services.config import load_config
from services.serve import applications


class NoArguments(BaseModel):
    """Arguments of an application that takes none."""

    model_config = ConfigDict(extra="forbid")


class ShardArguments(BaseModel):
    """Arguments of the retriever and the controller: the number of the ``shard``."""

    model_config = ConfigDict(extra="forbid")

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
