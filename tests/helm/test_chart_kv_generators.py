"""KV generators: their own pods, and what cannot work beside generators on GPUs."""

import pytest
from rendered_release import ray_container

from scripts.chart.helm import HelmError
from services.serve.replica_settings import DECIDE_KV

ON = ("config.serving.kv_generators.replicas=1", "generator.peers.enabled=true")
ON_CPUS = (*ON, "config.serving.generator.num_gpus=1", 'config.generator.kv.page_layout="neutral"')
BUILD_FOR_GPUS = 'image.tag="ours-gpu"'


@pytest.fixture(scope="module")
def mixed(render):
    return render("cpu-kv-generators")


def _image(release, group):
    pod = release.ray_pods[group]
    images = {container["image"] for container in (ray_container(pod), *pod["spec"]["initContainers"])}
    (image,) = images
    return image


def test_without_any_there_is_no_group(defaults):
    assert "kv-generator" not in defaults.groups
    assert "kv_generator" not in [application["name"] for application in defaults.serve_config["applications"]]


def test_they_have_pods_that_generators_do_not_fit(render):
    release = render(settings=ON)
    assert "kv_generator" in [application["name"] for application in release.serve_config["applications"]]
    assert (release.groups["generator"]["minReplicas"], release.groups["kv-generator"]["minReplicas"]) == (1, 1)
    offered = {name: release.groups[name]["rayStartParams"]["resources"] for name in ("generator", "kv-generator")}
    assert offered == {"generator": "'{\"ragtree_generator\":1}'", "kv-generator": "'{\"ragtree_kv_generator\":1}'"}


def test_without_gpus_they_have_the_image_for_cpus_and_no_gpu(mixed):
    images = {group: _image(mixed, group) for group in mixed.groups}
    assert images.pop("kv-generator") == "ragtree:0.1.0-cpu"
    assert set(images.values()) == {"ragtree:0.1.0-gpu"}
    limits = {group: ray_container(pod)["resources"]["limits"] for group, pod in mixed.ray_pods.items()}
    assert limits["generator"]["nvidia.com/gpu"] == 1
    assert limits["kv-generator"] == {"memory": "48Gi"}
    assert mixed.groups["kv-generator"]["rayStartParams"]["num-gpus"] == "0"


def test_scheduling_is_their_own(mixed):
    pods = {group: mixed.ray_pods[group]["spec"] for group in ("generator", "kv-generator")}
    assert {group: pod["nodeSelector"] for group, pod in pods.items()} == {
        "generator": {"pool": "gpu"},
        "kv-generator": {"pool": "cpu"},
    }
    assert "tolerations" not in pods["kv-generator"]


def test_with_gpus_they_are_like_generators(render):
    release = render(settings=(*ON_CPUS, 'image.variant="gpu"', "config.serving.kv_generators.num_gpus=1"))
    assert _image(release, "kv-generator") == _image(release, "generator") == "ragtree:0.1.0-gpu"
    assert ray_container(release.ray_pods["kv-generator"])["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert release.groups["kv-generator"]["rayStartParams"]["num-gpus"] == "1"


@pytest.mark.parametrize(
    ("setting", "image"),
    [
        ('kvGenerator.image.tag="ours-cpu"', "ragtree:ours-cpu"),
        (f'kvGenerator.image.digest="sha256:{"0" * 64}"', f"ragtree@sha256:{'0' * 64}"),
    ],
)
def test_an_image_of_ones_own_has_to_be_named_twice(chart, render, setting, image):
    with pytest.raises(HelmError, match=r"kvGenerator\.image: .* names the build for GPUs"):
        chart.render(settings=[*ON_CPUS, BUILD_FOR_GPUS])
    release = render(settings=(*ON_CPUS, BUILD_FOR_GPUS, setting))
    assert (_image(release, "generator"), _image(release, "kv-generator")) == ("ragtree:ours-gpu", image)


def test_on_cpus_beside_gpus_they_need_neutral_pages(chart):
    settings = [*ON, "config.serving.generator.num_gpus=1"]
    with pytest.raises(HelmError, match="pages that generators on GPUs cannot read"):
        chart.render(settings=settings)
    for remedy in ("config.serving.kv_generators.num_gpus=1", 'config.generator.kv.page_layout="neutral"'):
        chart.render(settings=[*settings, remedy])


def test_engine_arguments_that_decide_what_kv_is_are_refused_as_by_ragtree(chart):
    for name in sorted(DECIDE_KV):
        with pytest.raises(HelmError, match=rf"engine_args\.{name}: it must be the same for all engines"):
            chart.render(settings=[*ON, f"config.serving.kv_generators.engine_args.{name}=1"])
    chart.render(settings=[*ON, "config.serving.kv_generators.engine_args.max_num_batched_tokens=1024"])


@pytest.mark.parametrize(
    "resources",
    [
        'config.serving.kv_generators.resources={"ragtree_kv_generator": null, "ragtree_generator": 1}',
        'config.serving.generator.resources={"ragtree_generator": null, "ragtree_kv_generator": 1}',
        'config.serving.generator.resources={"ragtree_kv_generator": 1}',
    ],
)
def test_resources_that_do_not_keep_them_apart_are_refused(chart, resources):
    with pytest.raises(HelmError, match="would take each other's pods"):
        chart.render(settings=[*ON, resources])
