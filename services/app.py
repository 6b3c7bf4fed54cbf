"""The composition root: one typed config in, one bound stack out.

gateway (ASGI) ── handles ──► retriever, controller, generator (one Ray Serve application each)

A retriever of several shards is an application for each of them, and the gateway merges what they find.
"""

from typing import NamedTuple

import ray
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from gateway.app import create_app
from gateway.query.tracing import Tracing
from generator.prompts.layout import SegmentLayout
from protocol.parts import Retriever
from retriever.sharding.sharded_retriever import ShardedRetriever
from services.config import Config
from services.model import generator_factory
from services.redis.stores import RedisStores
from services.serve.applications import (
    CONTROLLER,
    GATEWAY,
    GENERATOR,
    controller_application,
    gateway_application,
    generator_application,
    retriever_application,
    retriever_names,
)
from services.serve.handles import ControllerHandle, GeneratorHandle, RetrieverHandle
from services.spans import open_spans

_SHARE_OF_A_SHARD = 0.75
"""Of the time that the retriever has to say that it is ready, what a shard of it has."""


def build_parts(config: Config) -> list[serve.RunTarget]:
    """The Serve applications of the three parts behind the gateway."""
    retrievers = retriever_names(config)
    return [
        *(_target(retriever_application(config, shard), name) for shard, name in enumerate(retrievers)),
        _target(controller_application(config), CONTROLLER),
        _target(generator_application(config), GENERATOR),
    ]


def build_ingress(config: Config) -> serve.RunTarget:
    """The gateway as a Serve application behind Serve's own proxy; the parts must have been deployed."""
    return _target(gateway_application(config, build_app), GATEWAY, route_prefix="/")


class Parts(NamedTuple):
    """The parts of a running stack, as the gateway and the benchmarks call them."""

    retriever: Retriever
    controller: ControllerHandle
    generator: GeneratorHandle
    layout: SegmentLayout


def build_app(config: Config) -> FastAPI:
    """The gateway over the Serve applications of a running stack; needs a connection to its Ray."""
    registry = CollectorRegistry()
    spans = open_spans(config.observability, GATEWAY)
    return create_app(
        _parts(config),
        config.gateway,
        data_dir=config.data_dir / "gateway",
        registry=registry,
        stores=RedisStores(config.redis, config.gateway, registry) if config.redis.url else None,
        tracing=Tracing(spans.tracer, spans.close),
    )


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
        GeneratorHandle.over(_handle(GENERATOR)),
        generator_factory(config).layout(),
    )


def _retriever(config: Config) -> Retriever:
    shards = [RetrieverHandle(_handle(name), name) for name in retriever_names(config)]
    if len(shards) == 1:
        return shards[0]
    # One silent shard must be found missing before the gateway takes all of them for silent.
    ready_within_s = _SHARE_OF_A_SHARD * config.gateway.readiness_timeout_s
    return ShardedRetriever(shards, config.retriever.shards, ready_within_s)


def _handle(name: str) -> DeploymentHandle:
    return serve.get_deployment_handle(name, app_name=name)


def _target(application: serve.Application, name: str, route_prefix: str | None = None) -> serve.RunTarget:
    return serve.RunTarget(application, name=name, route_prefix=route_prefix, logging_config=_logging())


def _logging() -> LoggingConfig:
    return LoggingConfig(log_level="WARNING", enable_access_log=False)
