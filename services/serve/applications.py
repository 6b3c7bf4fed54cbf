"""The Ray Serve applications: one for each part, each with one deployment of the same name."""

from collections.abc import Callable

from fastapi import FastAPI
from ray import serve

from services.config import Config
from services.serve.deployments import (
    DRAIN_S,
    STREAMS_DRAIN_S,
    ControllerDeployment,
    GeneratorDeployment,
    RetrieverDeployment,
)
from services.serve.instance_router import InstanceRouter
from services.serve.replica_settings import DeviceSettings, KvGeneratorSettings, PlacementSettings, ReplicaSettings

RETRIEVER, CONTROLLER, GENERATOR, GATEWAY = "retriever", "controller", "generator", "gateway"
KV_GENERATOR = "kv_generator"

# The controller queues requests. Serve's own queue must never hold one back.
_UNBOUNDED = 100_000

LOOK_BACK_S = 30.0
"""Seconds over which running calls are averaged. Ray Serve counts every ten seconds."""

_GATEWAY_STREAMS = 64.0
"""Streams per gateway above which another one is started."""


def retriever_names(config: Config) -> list[str]:
    """Return the retriever's name, or the names of its shards."""
    return _sharded(RETRIEVER, config.retriever.shards.count)


def retriever_application(config: Config, shard: int = 0) -> serve.Application:
    """Build the retriever, or one shard of it."""
    return _bound(RetrieverDeployment, config, retriever_names(config)[shard], config, shard)


def controller_names(config: Config) -> list[str]:
    """Return the controller's name, or the names of its shards."""
    return _sharded(CONTROLLER, config.controller.shards)


def controller_application(config: Config, shard: int = 0) -> serve.Application:
    """Build the cache controller, or one shard of it. It finds the generator and the KV generators by name."""
    name, generators = controller_names(config)[shard], (GENERATOR, *kv_generator_names(config))
    return _bound(ControllerDeployment, config, name, config, shard, *generators)


def generator_application(config: Config) -> serve.Application:
    """Build the generator, with the configured number of instances."""
    return _bound(GeneratorDeployment, config, GENERATOR, config)


def kv_generator_names(config: Config) -> list[str]:
    """Return the name of the KV generators' application, if there are any."""
    return [KV_GENERATOR] if config.serving.kv_generators.replicas else []


def kv_generator_application(config: Config) -> serve.Application:
    """Build the instances that only generate KV. They are generators to which the controller sends no queries."""
    return _bound(GeneratorDeployment, config, KV_GENERATOR, config.for_kv_generators())


def gateway_application(config: Config, build_app: Callable[[Config], FastAPI]) -> serve.Application:
    """Build the gateway behind Serve's own proxy. Deploy the parts first."""

    # Serve calls a plain function in each replica; it takes any other callable for the app itself.
    def build() -> FastAPI:
        config.observability.configure_logging()
        return build_app(config)

    return _bound(serve.ingress(build)(), config, GATEWAY)


def deployment_options(config: Config, name: str) -> dict[str, object]:
    """Return a deployment's options under Ray Serve's names. Classes and routers are set in code, not here."""
    placement = _placement(config, name)
    options: dict[str, object] = {
        "name": name,
        "max_ongoing_requests": _UNBOUNDED,
        "ray_actor_options": {
            "num_cpus": placement.num_cpus,
            "num_gpus": placement.num_gpus if isinstance(placement, DeviceSettings) else 0,
            "resources": dict(placement.resources),
        },
        # A part that fails to start is tried once more, then given up, and its error is reported. A part that has run
        # before is restarted without limit.
        "max_constructor_retry_count": 2,
        # Three checks in a row must fail before a replica is replaced, so a dead engine is noticed within seconds.
        "health_check_period_s": 1.0,
        "health_check_timeout_s": 10.0,
        "graceful_shutdown_timeout_s": STREAMS_DRAIN_S if name in (GENERATOR, GATEWAY) else DRAIN_S,
        "graceful_shutdown_wait_loop_s": 0.5,
    }
    if isinstance(placement, ReplicaSettings) and placement.scales:
        # An instance never runs more than max_running. Other queries wait in the controller, where Serve sees none.
        most_queries = config.controller.max_running / 2
        options["autoscaling_config"] = {
            "min_replicas": placement.min_replicas,
            "max_replicas": placement.max_replicas,
            "target_ongoing_requests": _GATEWAY_STREAMS if name == GATEWAY else most_queries,
            "look_back_period_s": LOOK_BACK_S,
            "upscale_delay_s": placement.upscale_delay_s,
            "downscale_delay_s": placement.downscale_delay_s,
        }
    else:
        options["num_replicas"] = _replicas(placement)
    return options


def _placement(config: Config, name: str) -> PlacementSettings:
    if name == GENERATOR:
        return config.serving.generator
    if name == KV_GENERATOR:
        return config.serving.kv_generators
    if name == GATEWAY:
        return config.serving.gateway
    return config.serving.controller if name in controller_names(config) else config.serving.retriever


def _sharded(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{shard}" for shard in range(count)]


def _replicas(placement: PlacementSettings) -> int:
    match placement:
        case ReplicaSettings():
            return placement.min_replicas
        case KvGeneratorSettings():
            return placement.replicas
    return 1


def _bound(wrapper: type, config: Config, name: str, *arguments: object) -> serve.Application:
    deployment = serve.deployment(wrapper).options(**deployment_options(config, name))
    if name in (GENERATOR, KV_GENERATOR):
        deployment = deployment.options(request_router_config={"request_router_class": InstanceRouter})
    return deployment.bind(*arguments)
