"""The compose files conform to the specification. Services are pinned, limited and not reachable from outside."""

import itertools
import re
import tomllib

import pytest
import yaml
from compose_files import BASE, COMBINATIONS, FIRST, GPU, OBSERVABILITY, SECOND, defaults, merged, parsed
from compose_spec import parse_duration
from dockerfiles import ROOT, chain, stages
from options import is_option

from services.stack.foreground import PERSIST_S

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PROVISIONING = ROOT / "docker" / "observability" / "grafana" / "provisioning"
ALL = merged((BASE, GPU, OBSERVABILITY))
SERVICES = sorted(ALL["services"])
MOUNTS = sorted(
    (source.removeprefix("./"), target)
    for service in ALL["services"].values()
    for source, target in (volume.split(":")[:2] for volume in service.get("volumes", []))
    if source.startswith(".")
)


@pytest.mark.parametrize("files", COMBINATIONS)
def test_every_combination_conforms_to_the_specification(files):
    assert parsed(merged(files)).service_names()


@pytest.mark.parametrize("file", [GPU, OBSERVABILITY])
def test_each_overlay_alone_conforms_to_the_specification(file):
    assert parsed(merged((file,))).service_names()


@pytest.mark.parametrize("files", COMBINATIONS)
def test_every_volume_is_declared_and_used(files):
    document = merged(files)
    used = {volume.split(":")[0] for service in document["services"].values() for volume in service.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == document["volumes"].keys()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_limited_checked_and_unprivileged(name):
    service = ALL["services"][name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*", service["image"])
    assert {"memory", "cpus", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    assert service["healthcheck"]["test"][0] == "CMD"
    assert int(service["user"].split(":")[0]) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_localhost_only(name):
    assert [port for port in ALL["services"][name].get("ports", []) if not port.startswith("127.0.0.1:")] == []


def test_the_gateways_address_and_port_are_variables():
    open_to_all = merged((BASE,), {"RAGTREE_BIND": "0.0.0.0", "RAGTREE_PORT": "80"})
    assert open_to_all["services"]["ragtree"]["ports"] == ["0.0.0.0:80:8080"]


def test_only_ragtree_reaches_redis():
    assert "ports" not in ALL["services"]["redis"]
    assert ALL["services"]["redis"]["networks"] == ["back"]
    assert ALL["networks"]["back"] == {"internal": True}
    assert [name for name in SERVICES if "back" in ALL["services"][name].get("networks", ["default"])] == [
        "ragtree",
        "redis",
    ]


def test_compose_sets_only_options_that_exist():
    ours = [name for name in ALL["services"]["ragtree"]["environment"] if name.startswith("RAGTREE_")]
    assert ours
    assert [name for name in ours if not is_option(name)] == []


def test_keys_are_passed_through_and_have_no_value_in_a_file():
    environment = {name: value for service in ALL["services"].values() for name, value in _environment(service)}
    keys = {name: value for name, value in environment.items() if re.search("_KEYS?$|TOKEN|PASSWORD|SECRET", name)}
    assert set(keys) >= {"RAGTREE_GATEWAY__API_KEYS", "RAGTREE_GATEWAY__ADMIN_KEY", "HF_TOKEN"}
    assert set(keys.values()) == {None}


def test_compose_uses_the_images_that_the_dockerfile_builds():
    for files, target in (((BASE,), "cpu"), ((BASE, GPU), "gpu")):
        ragtree = merged(files)["services"]["ragtree"]
        assert ragtree["image"] == f"ragtree:{VERSION}-{target}"
        assert ragtree["build"]["target"] == target
        assert ragtree["build"]["args"] == {"VERSION": VERSION}
        assert target in stages()
        assert (ROOT / ragtree["build"]["dockerfile"]).is_file()
        home = ragtree["healthcheck"]["test"][1].removeprefix("/opt/ragtree/")
        assert (ROOT / home).is_file()


def test_the_folders_that_the_image_writes_to_are_mounted():
    made = next(rest for keyword, rest in chain("cpu") if keyword == "RUN" and "install --directory" in rest)
    folders = {volume.split(":")[1] for volume in ALL["services"]["ragtree"]["volumes"]}
    assert folders == {"/data", "/cache"}
    assert all(folder in made for folder in folders)
    assert ALL["services"]["ragtree"]["tmpfs"][0].startswith("/tmp:")


@pytest.mark.parametrize("files", [(BASE,), (BASE, GPU)])
def test_shared_memory_fits_kv_and_the_object_store_within_the_memory_limit(files):
    ragtree = merged(files)["services"]["ragtree"]
    shared = _gib(ragtree["shm_size"])
    assert shared >= float(ragtree["environment"]["RAGTREE_GENERATOR__KV__HOST_GIB"]) + 0.5
    assert _gib(ragtree["deploy"]["resources"]["limits"]["memory"]) >= 2 * shared


def test_stop_grace_period_is_long_enough():
    grace = parse_duration(ALL["services"]["ragtree"]["stop_grace_period"])
    assert grace >= PERSIST_S + 2 * 10


@pytest.mark.parametrize(("source", "target"), MOUNTS)
def test_mounted_files_exist(source, target):
    assert (ROOT / source).exists()


def test_the_example_lists_every_variable_with_its_default():
    example = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    known = defaults(GPU) | defaults(OBSERVABILITY) | defaults(SECOND) | defaults(FIRST) | defaults(BASE)
    assert example.keys() == known.keys()
    assert {name: example[name] for name, value in known.items() if value is not None} == {
        name: value for name, value in known.items() if value is not None
    }


def test_prometheus_finds_ragtree_and_its_rules():
    prometheus = yaml.safe_load((ROOT / "docker/observability/prometheus.yml").read_text())
    mounted = {target for _, target in MOUNTS}
    assert set(prometheus["rule_files"]) <= mounted
    targets = [static for job in prometheus["scrape_configs"] for static in job["static_configs"]]
    hosts = set(itertools.chain.from_iterable(static["targets"] for static in targets))
    assert hosts == {"ragtree:8080", "127.0.0.1:9090"}
    assert _share_a_network("prometheus", "ragtree")


def test_grafana_finds_its_dashboards_and_data_sources():
    dashboards = yaml.safe_load((PROVISIONING / "dashboards/dashboards.yml").read_text())
    assert {provider["options"]["path"] for provider in dashboards["providers"]} <= {target for _, target in MOUNTS}
    sources = yaml.safe_load((PROVISIONING / "datasources/datasources.yml").read_text())["datasources"]
    for source in sources:
        assert _share_a_network("grafana", source["url"].removeprefix("http://").partition(":")[0])


def test_traces_go_to_the_collector():
    endpoint = ALL["services"]["ragtree"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert endpoint == "http://jaeger:4318"
    assert _share_a_network("ragtree", "jaeger")


def _environment(service):
    return service.get("environment", {}).items()


def _share_a_network(one, other):
    return set(ALL["services"][one]["networks"]) & set(ALL["services"][other]["networks"])


def _gib(size):
    return float(size.removesuffix("gb"))
