"""The composition root: one typed config in, one bound stack out.

gateway (ASGI) ── handles ──► retriever, controller, generator (one Ray Serve application each)

A retriever of several shards is an application for each of them, and the gateway merges what they find.
"""

from typing import NamedTuple

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from gateway.app import create_app
from gateway.tracing import Tracing
from generator.layout import SegmentLayout
from protocol.parts import Retriever
from retriever.sharding.sharded import ShardedRetriever
from services.config import Config
from services.deployments.controller import ControllerDeployment
from services.deployments.generator import GeneratorDeployment
from services.deployments.retriever import RetrieverDeployment
from services.handles import ControllerHandle, GeneratorHandle, RetrieverHandle
from services.model import generator_factory
from services.spans import open_spans

RETRIEVER, CONTROLLER, GENERATOR, GATEWAY = "retriever", "controller", "generator", "gateway"

# Queues are the controller's business: Serve's own must never be the one that holds a request back.
_UNBOUNDED = 100_000

_SHARE_OF_A_SHARD = 0.75
"""Of the time that the retriever has to say that it is ready, what a shard of it has."""


def build_parts(config: Config) -> list[serve.RunTarget]:
    """The Serve applications of the three parts behind the gateway."""
    retrievers = _retriever_names(config)
    return [
        *(_target(serve.deployment(RetrieverDeployment), name, config, n) for n, name in enumerate(retrievers)),
        _target(serve.deployment(ControllerDeployment), CONTROLLER, config, GENERATOR),
        _target(serve.deployment(GeneratorDeployment), GENERATOR, config),
    ]


def build_ingress(config: Config) -> serve.RunTarget:
    """The gateway as a Serve application behind Serve's own proxy; the parts must have been deployed."""

    # A plain function, for Serve takes any other callable for the app itself. Each replica builds its own.
    def build() -> FastAPI:
        config.observability.configure_logging()
        return build_app(config)

    return _target(serve.deployment(serve.ingress(build)()), GATEWAY, route_prefix="/")


class Parts(NamedTuple):
    """The parts of a running stack, as the gateway and the benchmarks call them."""

    retriever: Retriever
    controller: ControllerHandle
    generator: GeneratorHandle
    layout: SegmentLayout


def build_app(config: Config) -> FastAPI:
    """The gateway over the Serve applications of a running stack; needs a connection to its Ray."""
    spans = open_spans(config.observability, GATEWAY)
    tracing = Tracing(spans.tracer, spans.close)
    return create_app(_parts(config), config.gateway, data_dir=config.data_dir / "gateway", tracing=tracing)


def connect_parts(config: Config, ray_address: str) -> Parts:
    """Connect this process to a running stack's Ray and find its parts there."""
    ray.init(address=ray_address, logging_level="ERROR", log_to_driver=False)
    return _parts(config)


def connect_controller() -> ControllerHandle:
    """The controller of the stack that this process runs."""
    return ControllerHandle(_handle(CONTROLLER))


def _parts(config: Config) -> Parts:
    return Parts(
        _retriever(config),
        connect_controller(),
        GeneratorHandle(_handle(GENERATOR)),
        generator_factory(config).layout(),
    )


def _retriever(config: Config) -> Retriever:
    shards = [RetrieverHandle(_handle(name), name) for name in _retriever_names(config)]
    if len(shards) == 1:
        return shards[0]
    # One silent shard must be found missing before the gateway takes all of them for silent.
    ready_within_s = _SHARE_OF_A_SHARD * config.gateway.readiness_timeout_s
    return ShardedRetriever(shards, config.retriever.shards, ready_within_s)


def _retriever_names(config: Config) -> list[str]:
    count = config.retriever.shards.count
    return [RETRIEVER] if count == 1 else [f"{RETRIEVER}-{shard}" for shard in range(count)]


def _handle(name: str) -> DeploymentHandle:
    return serve.get_deployment_handle(name, app_name=name)


def _target(
    deployment: serve.Deployment, name: str, *arguments: object, route_prefix: str | None = None
) -> serve.RunTarget:
    application = deployment.options(**_options(name)).bind(*arguments)
    return serve.RunTarget(application, name=name, route_prefix=route_prefix, logging_config=_logging())


def _options(name: str) -> dict[str, object]:
    return {
        "name": name,
        "num_replicas": 1,
        "max_ongoing_requests": _UNBOUNDED,
        "ray_actor_options": {"num_cpus": 0},
        # A part that cannot start is tried once more and then given up, with its error for all to see; one that ran
        # before is started again for as long as it takes.
        "max_constructor_retry_count": 2,
        # A dead engine is noticed within seconds; three checks in a row must fail before a replica is replaced.
        "health_check_period_s": 1,
        "health_check_timeout_s": 10,
        "graceful_shutdown_timeout_s": 10,
    }


def _logging() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)
