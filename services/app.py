"""The composition root: builds the stack from one typed configuration.

gateway (ASGI) ── handles ──► retriever, controller, generator (one Ray Serve application each)

A sharded retriever has one application for each shard, and the gateway merges their results.
"""

from typing import NamedTuple

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from ray import serve
from ray.serve.schema import LoggingConfig

from cachectl.sharding.sharded_controller import ShardedController
from gateway.app import create_app
from gateway.query.tracing import Tracing
from generator.prompts.layout import SegmentLayout
from protocol.parts import Controller, Retriever
from retriever.sharding.sharded_retriever import ShardedRetriever
from services.config import Config
from services.model import generator_factory
from services.observability.spans import open_spans
from services.redis.stores import RedisStores
from services.serve.applications import (
    GATEWAY,
    GENERATOR,
    controller_application,
    controller_names,
    gateway_application,
    generator_application,
    kv_generator_application,
    kv_generator_names,
    retriever_application,
    retriever_names,
)
from services.serve.handles import GeneratorHandle, controller_handle, retriever_handle

_LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)

_SHARD_READINESS_SHARE = 0.75
"""Share of the retriever's readiness timeout that each shard gets."""


def build_parts(config: Config) -> list[serve.RunTarget]:
    """Build the Serve applications of the three parts behind the gateway, and of KV generators, if there are any."""
    retrievers = retriever_names(config)
    return [
        *(_target(retriever_application(config, shard), name) for shard, name in enumerate(retrievers)),
        *(_target(controller_application(config, shard), name) for shard, name in enumerate(controller_names(config))),
        _target(generator_application(config), GENERATOR),
        *(_target(kv_generator_application(config), name) for name in kv_generator_names(config)),
    ]


def build_ingress(config: Config) -> serve.RunTarget:
    """Build the gateway as a Serve application behind Serve's own proxy. Deploy the parts first."""
    return _target(gateway_application(config, build_app), GATEWAY, route_prefix="/")


class Parts(NamedTuple):
    """The parts of a running stack, as the gateway calls them."""

    retriever: Retriever
    controller: Controller
    generator: GeneratorHandle
    layout: SegmentLayout


def build_app(config: Config) -> FastAPI:
    """Build the gateway over a running stack's Serve applications. Needs a connection to its Ray."""
    registry = CollectorRegistry()
    spans = open_spans(config.observability, GATEWAY)
    return create_app(
        connect_parts(config),
        config.gateway,
        data_dir=config.data_dir / "gateway",
        registry=registry,
        stores=RedisStores(config.redis, config.gateway, registry) if config.redis.url else None,
        tracing=Tracing(spans.tracer, spans.close),
    )


def connect_controller(config: Config) -> Controller:
    """Return the controller of the stack that this process runs."""
    shards = [controller_handle(name) for name in controller_names(config)]
    return shards[0] if len(shards) == 1 else ShardedController(shards)


def connect_parts(config: Config) -> Parts:
    """Return handles of a running stack's parts. Needs a connection to its Ray."""
    return Parts(
        _retriever(config),
        connect_controller(config),
        GeneratorHandle.over(GENERATOR),
        generator_factory(config).layout(),
    )


def _retriever(config: Config) -> Retriever:
    shards = [retriever_handle(name) for name in retriever_names(config)]
    if len(shards) == 1:
        return shards[0]
    # A silent shard must time out before the gateway gives up on all of them.
    ready_within_s = _SHARD_READINESS_SHARE * config.gateway.pace.readiness_timeout_s
    return ShardedRetriever(shards, config.retriever.shards, ready_within_s, config.retriever.reranker)


def _target(application: serve.Application, name: str, route_prefix: str | None = None) -> serve.RunTarget:
    return serve.RunTarget(application, name=name, route_prefix=route_prefix, logging_config=_LOGGING)
