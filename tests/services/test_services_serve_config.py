"""The Ray Serve config file of the stack."""

from importlib import import_module
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from protocol.errors import ConfigError
from services.config import Config, load_config
from services.serve.applications import generator_application, kv_generator_application
from services.serving import render, serve_config

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGTREE_CONFIG", raising=False)


def deployments(config: Config) -> dict[str, dict]:
    return {app["name"]: app["deployments"][0] for app in serve_config(config)["applications"]}


def test_repository_file_matches_the_defaults():
    assert (ROOT / "services" / "serve.yaml").read_text() == render(load_config())


def test_ray_serve_accepts_the_file():
    schema = ServeDeploySchema.model_validate(yaml.safe_load(render(load_config())))
    assert [app.name for app in schema.applications] == ["retriever", "controller", "generator", "gateway"]
    assert [app.route_prefix for app in schema.applications] == [None, None, None, "/"]


def test_every_application_can_be_imported():
    for app in serve_config(load_config())["applications"]:
        module, _, name = app["import_path"].partition(":")
        assert callable(getattr(import_module(module), name))


def test_each_shard_is_an_application_with_its_number(monkeypatch):
    monkeypatch.setenv("RAGTREE_RETRIEVER__SHARDS__COUNT", "2")
    apps = {app["name"]: app["args"] for app in serve_config(load_config())["applications"]}
    assert {name: apps[name] for name in apps if name.startswith("retriever")} == {
        "retriever-0": {"shard": 0},
        "retriever-1": {"shard": 1},
    }


def test_kv_generators_are_an_application_of_their_own(monkeypatch):
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__REPLICAS", "2")
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__NUM_GPUS", "0.5")
    apps = {app["name"]: app for app in serve_config(load_config())["applications"]}
    assert apps["kv_generator"]["import_path"] == "services.serving:kv_generator"
    (deployment,) = apps["kv_generator"]["deployments"]
    assert (deployment["num_replicas"], deployment["ray_actor_options"]["num_gpus"]) == (2, 0.5)
    ServeDeploySchema.model_validate(serve_config(load_config()))


def test_kv_generators_have_engine_arguments_of_their_own(monkeypatch):
    monkeypatch.setenv("RAGTREE_GENERATOR__ENGINE_ARGS", '{"block_size": 32, "max_num_batched_tokens": 8192}')
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__ENGINE_ARGS", '{"max_num_batched_tokens": 1024}')
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__REPLICAS", "1")
    generator, kv_generator = (
        make(load_config())._bound_deployment.init_args[0].generator.engine_args
        for make in (generator_application, kv_generator_application)
    )
    assert generator == {"block_size": 32, "max_num_batched_tokens": 8192}
    assert kv_generator == {"block_size": 32, "max_num_batched_tokens": 1024}


@pytest.mark.parametrize(
    ("gpus", "dtype", "used"), [("1", "auto", "bfloat16"), ("0", "auto", "auto"), ("1", "float16", "float16")]
)
def test_kv_generators_on_cpus_have_the_dtype_of_the_gpus(monkeypatch, gpus, dtype, used):
    """A CPU without native bfloat16 would choose another one, and nobody could use its KV."""
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__NUM_GPUS", gpus)
    monkeypatch.setenv("RAGTREE_GENERATOR__DTYPE", dtype)
    monkeypatch.setenv("RAGTREE_GENERATOR__KV__PAGE_LAYOUT", "neutral")
    monkeypatch.setenv("RAGTREE_SERVING__KV_GENERATORS__REPLICAS", "1")
    generator, kv_generator = (
        make(load_config())._bound_deployment.init_args[0].generator.dtype
        for make in (generator_application, kv_generator_application)
    )
    assert (generator, kv_generator) == (dtype, used)


def test_replicas_and_resources_follow_the_configuration(monkeypatch):
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__MIN_REPLICAS", "2")
    assert deployments(load_config())["generator"]["num_replicas"] == 2
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__MAX_REPLICAS", "5")
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__NUM_GPUS", "1")
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__RESOURCES", '{"ragtree_generator": 1}')
    generator = deployments(load_config())["generator"]
    assert "num_replicas" not in generator
    assert (generator["autoscaling_config"]["min_replicas"], generator["autoscaling_config"]["max_replicas"]) == (2, 5)
    assert generator["ray_actor_options"] == {"num_cpus": 0, "num_gpus": 1, "resources": {"ragtree_generator": 1}}


def test_max_replicas_below_min_replicas_is_refused(monkeypatch):
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__MIN_REPLICAS", "3")
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__MAX_REPLICAS", "2")
    with pytest.raises(ConfigError, match="at least min_replicas"):
        load_config()


@pytest.mark.parametrize("most", [1, 2, 32])
def test_instances_are_added_before_all_run_as_many_queries_as_they_may(monkeypatch, most):
    monkeypatch.setenv("RAGTREE_CONTROLLER__MAX_RUNNING", str(most))
    monkeypatch.setenv("RAGTREE_SERVING__GENERATOR__MAX_REPLICAS", "2")
    target = deployments(load_config())["generator"]["autoscaling_config"]["target_ongoing_requests"]
    assert 0 < target < most
