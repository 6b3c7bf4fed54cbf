"""Monitors, alert rules and dashboards, from the chart's own files and from test files."""

import json
import shutil

import pytest
import yaml
from rendered_release import Release, labels_of, ray_container

from scripts.chart.helm import Helm
from scripts.chart.manifests import ManifestChecker
from scripts.chart.value_sets import CHART

MIB = 1024**2
ON = ("metrics.prometheusRule.enabled=true", "metrics.dashboards.enabled=true")


@pytest.fixture(scope="module")
def with_files(tmp_path_factory):
    """Render a copy of the chart with these alert rules and dashboards in place of its own."""

    def render(alerts, dashboards):
        chart = shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / "ragtree")
        shutil.rmtree(chart / "dashboards", ignore_errors=True)
        (chart / "dashboards").mkdir()
        for name, text in dashboards.items():
            (chart / "dashboards" / name).write_text(text)
        (chart / "files" / "alerts.yaml").unlink(missing_ok=True)
        if alerts:
            (chart / "files" / "alerts.yaml").write_text(alerts)
        return Release(Helm(chart).render(settings=ON))

    return render


def _dashboards(release):
    return [m for m in release.all("ConfigMap") if "grafana_dashboard" in labels_of(m)]


def test_each_dashboard_is_a_config_map_that_grafana_finds(everything):
    found = _dashboards(everything)
    assert len(found) == len(list(CHART.glob("dashboards/*.json")))
    for config_map in found:
        assert labels_of(config_map)["grafana_dashboard"] == "1"
        assert config_map["metadata"]["annotations"] == {"grafana_folder": "RAGTree"}
        ((name, text),) = config_map["data"].items()
        assert json.loads(text) == json.loads((CHART / "dashboards" / name).read_text())
        assert len(json.dumps(config_map)) < MIB


ALERTS = """\
# The rules.
groups:
  - name: ragtree
    rules:
      - alert: HitRateLow
        expr: ragtree_cache_hits_total / ragtree_cache_lookups_total < 0.1
        for: 15m
        labels: {severity: warning}
        annotations:
          summary: "{{ $labels.tier }} finds {{ $value | humanizePercentage }}"
"""


def test_rules_and_dashboards_are_rendered_unchanged(with_files):
    dashboard = json.dumps({"title": "Über {{tier}}", "panels": [{"expr": 'a{b="c"}'}]}, indent=2, ensure_ascii=False)
    release = with_files(ALERTS, {"cache_tiers.json": dashboard})
    rule = release.one("PrometheusRule")
    assert rule["spec"] == yaml.safe_load(ALERTS)
    assert ManifestChecker(None).faults(rule) == []
    (config_map,) = _dashboards(release)
    assert config_map["metadata"]["name"] == "ragtree-dashboard-cache-tiers"
    assert json.loads(config_map["data"]["cache_tiers.json"]) == json.loads(dashboard)


def test_no_files_render_no_rules_or_dashboards(with_files):
    release = with_files(None, {})
    assert release.all("PrometheusRule") == []
    assert _dashboards(release) == []


def test_the_charts_own_rules_are_rendered(everything):
    alerts = CHART / "files" / "alerts.yaml"
    rules = [rule["spec"] for rule in everything.all("PrometheusRule")]
    assert rules == ([yaml.safe_load(alerts.read_text())] if alerts.is_file() else [])


def test_monitors_select_pods_and_services_with_the_named_port(everything):
    service, monitor = everything.one("Service"), everything.one("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels_of(service).items()
    assert [e["port"] for e in monitor["spec"]["endpoints"]] == [port["name"] for port in service["spec"]["ports"]]
    pods = everything.one("PodMonitor")
    for template in everything.ray_pods.values():
        assert pods["spec"]["selector"]["matchLabels"].items() <= labels_of(template).items()
        assert "metrics" in {port["name"] for port in ray_container(template)["ports"]}
    for kind in ("ServiceMonitor", "PodMonitor"):
        assert labels_of(everything.one(kind))["release"] == "prometheus"


def test_prometheus_operator_resources_are_off_by_default(defaults):
    assert {manifest["apiVersion"].partition("/")[0] for manifest in defaults.manifests}.isdisjoint(
        {"monitoring.coreos.com"}
    )
