"""The applications as a Ray Serve config file names them: ``import_path: services.serving:generator``.

Each reads the configuration of the container that it runs in (``RAGTREE_CONFIG`` and the environment), so the file has
nothing of it. ``ragtree config render`` writes that file.
"""

from pydantic import BaseModel, ConfigDict
from ray import serve

from services.app import build_app
from services.config import load_config
from services.serve import applications


class NoArguments(BaseModel):
    """What an application takes that has no arguments."""

    model_config = ConfigDict(extra="forbid")


class ShardArguments(BaseModel):
    """What the retriever takes: which ``shard`` it is."""

    model_config = ConfigDict(extra="forbid")

    shard: int = 0


def retriever(arguments: ShardArguments) -> serve.Application:
    """The retriever, or one shard of it."""
    return applications.retriever_application(load_config(), arguments.shard)


def controller(_arguments: NoArguments) -> serve.Application:
    """The cache controller."""
    return applications.controller_application(load_config())


def generator(_arguments: NoArguments) -> serve.Application:
    """The generator, of all its instances."""
    return applications.generator_application(load_config())


def gateway(_arguments: NoArguments) -> serve.Application:
    """The gateway behind Serve's proxy."""
    return applications.gateway_application(load_config(), build_app)
