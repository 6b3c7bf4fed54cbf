"""The manifests fit the schemas of Kubernetes, KubeRay and the Prometheus operator. The check finds faults."""

import copy
import re
import subprocess
import sys
from functools import reduce

import pytest
import yaml

from scripts.chart.custom_resources import DEFINITION, ray_service
from scripts.chart.helm import HelmError
from scripts.chart.manifests import ManifestChecker
from scripts.chart.value_sets import CHART, ROOT, value_sets


@pytest.fixture(scope="module")
def checker():
    return ManifestChecker(ray_service())


def _with(manifest, place, value):
    changed = copy.deepcopy(manifest)
    part = changed
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return changed


def test_make_chart_passes():
    make = [sys.executable, "-m", "scripts.chart"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all right") == len(value_sets()) == 7


def test_every_manifest_of_every_value_set_is_valid(each, checker):
    assert [fault for manifest in each.manifests for fault in checker.faults(manifest)] == []


POD = ["spec", "rayClusterConfig", "headGroupSpec", "template", "spec"]


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("Service", ["spec", "portz"], []),
        ("Ingress", ["spec", "rules"], "all"),
        ("NetworkPolicy", ["spec", "policyTypes"], "Ingress"),
        ("PersistentVolumeClaim", ["spec", "size"], "1Gi"),
        ("ServiceMonitor", ["spec", "endpoint"], []),
        ("PodMonitor", ["spec", "podMetricsEndpoints"], []),
        ("RayService", [*POD, "containrs"], []),
        ("RayService", [*POD, "containers", 0, "ports", 0, "containerPort"], "http"),
    ],
)
def test_invalid_fields_are_reported(everything, checker, kind, place, value):
    broken = _with(everything.all(kind)[0], place, value)
    assert checker.faults(broken) != []


@pytest.mark.shared_data
@pytest.mark.skipif(not DEFINITION.is_file(), reason="KubeRay's definition is not part of the project")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["spec", "excludeHeadFromServeSvc"], True),
        (["spec", "rayClusterConfig", "gcsFaultTolerance"], {}),
        (["spec", "rayClusterConfig", "autoscalerOptions", "idleSeconds"], 1),
        (["spec", "rayClusterConfig", "autoscalerOptions", "version"], "v3"),
        (["spec", "rayClusterConfig", "headGroupSpec", "rayStartParams", "num-cpus"], 0),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0, "minReplica"], 1),
        ([*POD, "containers", 0, "livenessProb"], {}),
    ],
)
def test_fields_unknown_to_kuberay_are_reported(everything, checker, place, value):
    assert checker.faults(everything.one("RayService")) == []
    assert checker.faults(_with(everything.one("RayService"), place, value)) != []


def test_alert_rules_are_checked_against_prometheus_fields(checker):
    rule = {"alert": "Slow", "expr": "up == 0", "for": "5m", "labels": {"severity": "page"}}
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "r"},
        "spec": {"groups": [{"name": "g", "rules": [rule]}]},
    }
    assert checker.faults(manifest) == []
    assert checker.faults(_with(manifest, ["spec", "groups", 0, "rules", 0], rule | {"summary": "x"})) != []
    assert checker.faults(_with(manifest, ["spec", "groups", 0, "rules", 0], {"expr": "up"})) != []


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("generator.resorces={}", "'/generator': additional properties 'resorces' not allowed"),
        ("secret={}", "additional properties 'secret' not allowed"),
        ("redis.hots=1", "'/redis': additional properties 'hots' not allowed"),
        ("config.serving.generator.min_replica=2", "'/config/serving/generator': additional properties 'min_replica'"),
        (
            'config.serving.generator.max_replicas="many"',
            "'/config/serving/generator/max_replicas': got string, want int",
        ),
        ("retriever.persistence.size=20", "'/retriever/persistence/size': got number, want string"),
        ('image.variant="tpu"', "'/image/variant': value must be one of 'cpu', 'gpu'"),
        ("config.server.port=8090", "'/config/server/port'"),
        ("generator.resources.requests.cpu=null", "missing property 'cpu'"),
        ("ingress.enabled=true", "secrets.apiKeys.existingSecret"),
        ('service.type="LoadBalancer"', "secrets.apiKeys.existingSecret"),
        ("networkPolicy.operator=[]", "'/networkPolicy/operator': minItems: got 0, want 1"),
        ("redis.enabled=true", "redis.host and redis.existingSecret are required"),
        ('upgrade.strategy="NewCluster"', "one owner"),
        ('config.gateway.admin_key="hush"', "keys belong in a Secret"),
        ('config.redis.url="redis://:hush@redis"', "belongs in a Secret"),
        ("config.serving.gateway.min_replicas=9", "min_replicas 9 is above max_replicas 1"),
        ("config.serving.gateway.max_replicas=2", "several gateways need pods of their own"),
        ("config.serving.kv_generators.replicas=1", "other pods could not read what they compute"),
        ("config.controller.shards=0", "'/config/controller/shards'"),
    ],
)
def test_invalid_values_are_refused_with_a_reason(chart, setting, told):
    with pytest.raises(HelmError) as refused:
        chart.render(settings=[setting])
    assert told in str(refused.value)


def test_every_value_is_in_the_schema_and_the_readme():
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    readme = (CHART / "README.md").read_text()
    assert [key for key in values if f"`{key}" not in readme] == []


@pytest.mark.parametrize("page", [CHART / "README.md", ROOT / "README.md"])
def test_values_set_in_the_docs_exist(page):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.findall(r"--set ([\w.]+)=", page.read_text())
    assert named
    for name in named:
        reduce(lambda part, key: part[key], name.split("."), values)


def test_chart_version_matches_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
    assert chart["version"] == chart["appVersion"]
    locked = (ROOT / "requirements" / "cpu.lock").read_text()
    assert f"ray=={yaml.safe_load((CHART / 'values.yaml').read_text())['rayVersion']}" in locked.replace("[serve]", "")
