"""The Ray Serve applications, and the resources that Ray's pods provide."""

import json

import pytest
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.serve.schema import ServeDeploySchema

from services.config import load_config
from services.serving import serve_config


@pytest.fixture
def config(each, monkeypatch, tmp_path):
    """Load the options as a pod does."""
    (tmp_path / "ragtree.yaml").write_text(json.dumps(each.options))
    monkeypatch.setenv("RAGTREE_CONFIG", str(tmp_path / "ragtree.yaml"))
    return load_config()


def test_the_serve_config_equals_ragtrees_for_the_same_options(each, config):
    assert each.serve_config == serve_config(config)


def test_ragtree_accepts_the_options(each, config):
    assert config.server.host == "0.0.0.0"
    assert config.generator.kv.host_gib == each.options["generator"]["kv"]["host_gib"]


def test_ray_serve_accepts_the_serve_config(each):
    deployed = ServeDeploySchema.model_validate(each.serve_config)
    shards = each.options["retriever"]["shards"]["count"] + each.options["controller"]["shards"]
    generators = 1 + bool(each.options["serving"]["kv_generators"]["replicas"])
    assert len(deployed.applications) == shards + generators + 1


def test_each_shard_is_an_application(render):
    names = [application["name"] for application in render("sharded").serve_config["applications"]]
    assert names == [
        *(f"retriever-{shard}" for shard in range(4)),
        "controller-0",
        "controller-1",
        "generator",
        "gateway",
    ]


def test_large_numbers_are_rendered_without_an_exponent(everything):
    assert everything.options["gateway"]["max_document_bytes"] == 33554432


class TestPlacement:
    """Replicas fit the resources that Ray's autoscaler derives from KubeRay's RayCluster."""

    @pytest.fixture
    def offered(self, each):
        cluster = {"metadata": {"name": "c", "namespace": "rag"}, "spec": each.cluster}
        types = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
        return {name: kind["resources"] for name, kind in types.items()}

    def test_the_largest_groups_have_resources_for_every_replica(self, each, offered):
        groups = each.groups
        for application in each.serve_config["applications"]:
            (deployment,) = application["deployments"]
            replicas = deployment.get("autoscaling_config", {}).get("max_replicas") or deployment["num_replicas"]
            part = application["name"].partition("-")[0]
            shards = {"retriever": each.options["retriever"]["shards"]["count"]}
            shards["controller"] = each.options["controller"]["shards"]
            of_the_kind = shards.get(part, replicas)
            for name, amount in deployment["ray_actor_options"]["resources"].items():
                room = sum(groups[g]["maxReplicas"] * offered[g].get(name, 0) for g in groups if g != "head")
                assert room >= amount * of_the_kind

    def test_no_replica_fits_the_head_and_one_generator_fits_each_pod(self, each, offered):
        head = next(has for name, has in offered.items() if name not in each.groups or name == "head")
        assert head["CPU"] == 0
        assert not [name for name in head if name.startswith("ragtree")]
        for application in each.serve_config["applications"]:
            assert application["deployments"][0]["ray_actor_options"]["resources"]
        assert offered["generator"]["ragtree_generator"] == 1

    def test_only_generators_of_the_gpu_preset_offer_a_gpu(self, render):
        gpu = render("gpu")
        cluster = {"metadata": {"name": "c", "namespace": "rag"}, "spec": gpu.cluster}
        types = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
        gpus = {name: types[name]["resources"].get("GPU", 0) for name in gpu.groups if name != "head"}
        assert gpus == {"retriever": 0, "generator": 1, "gateway": 0}

    def test_fractions_are_offered_as_whole_numbers(self, render):
        halves = render("sharded", settings=("config.serving.retriever.resources.ragtree_retriever=0.4",))
        offer = json.loads(halves.groups["retriever"]["rayStartParams"]["resources"].strip("'"))
        assert offer == {"ragtree_retriever": 2, "ragtree_controller": 2}
        assert all(isinstance(amount, int) for amount in offer.values())


class TestSize:
    def test_group_limits_follow_serves_replicas(self, everything):
        group = everything.groups["generator"]
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 6)
        group = everything.groups["kv-generator"]
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
        retriever = everything.groups["retriever"]
        assert (retriever["minReplicas"], retriever["maxReplicas"]) == (1, 1)

    def test_groups_start_at_full_size_without_an_autoscaler(self, render):
        fixed = render(settings=("autoscaling.enabled=false", "config.serving.generator.max_replicas=3"))
        group = fixed.groups["generator"]
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
        assert "autoscalerOptions" not in fixed.cluster

    def test_upgrades_never_share_the_document_volume(self, each):
        strategy = each.ray_service["upgradeStrategy"]["type"]
        assert strategy == ("None" if each.all("PersistentVolumeClaim") else "NewCluster")
