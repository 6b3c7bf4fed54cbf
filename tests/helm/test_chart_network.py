"""Network policies, names and selectors, and pod disruption budgets."""

import re
import shutil

import pytest
from rendered_release import Release, labels_of, ray_container

from scripts.chart.helm import Helm
from scripts.chart.value_sets import CHART
from services.serve.applications import STREAMS_DRAIN_S


def _selects(selector, labels):
    return selector["matchLabels"].items() <= labels.items()


def _ports(pod):
    return {port["name"]: port["containerPort"] for port in ray_container(pod).get("ports", [])}


def _policies(release):
    return {
        policy["metadata"]["name"].removeprefix(release.one("RayService")["metadata"]["name"]): policy["spec"]
        for policy in release.all("NetworkPolicy")
    }


class TestNetworkPolicy:
    def test_policy_denies_all_other_traffic_of_every_pod(self, everything):
        policy = _policies(everything)[""]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert all(_selects(policy["podSelector"], labels_of(pod)) for pod in everything.pods.values())
        for rule in [*policy["ingress"], *policy["egress"]]:
            assert rule.get("from") or rule.get("to") or rule.get("ports")

    def test_policies_name_only_ports_of_the_pods(self, each):
        for policy in each.all("NetworkPolicy"):
            pods = [pod for pod in each.ray_pods.values() if _selects(policy["spec"]["podSelector"], labels_of(pod))]
            assert pods
            for rule in policy["spec"].get("ingress", []):
                named = [port["port"] for port in rule.get("ports", []) if isinstance(port["port"], str)]
                assert all(name in _ports(pod) for name in named for pod in pods)

    def test_only_gateway_metrics_and_dashboard_are_reachable_from_outside(self, defaults):
        opened = {}
        for name, policy in _policies(defaults).items():
            for rule in policy["ingress"]:
                if rule["from"] != [{"podSelector": _policies(defaults)[""]["podSelector"]}]:
                    opened.setdefault(name, []).extend(port["port"] for port in rule["ports"])
        assert opened == {"": ["metrics"], "-gateway": ["serve"], "-head": ["dashboard"]}

    def test_pods_of_the_release_reach_each_other_on_every_port(self, defaults):
        """Serve's replicas listen on ports that the kernel chooses."""
        policy = _policies(defaults)[""]
        assert {"from": [{"podSelector": policy["podSelector"]}]} in policy["ingress"]
        assert {"to": [{"podSelector": policy["podSelector"]}]} in policy["egress"]

    def test_pods_may_call_only_dns_redis_and_configured_targets(self, everything):
        ports = [[p["port"] for p in rule.get("ports", [])] for rule in _policies(everything)[""]["egress"]]
        assert ports == [[], [53, 53], [6380], [4318]]

    def test_only_a_head_with_an_autoscaler_reaches_the_kubernetes_api(self, everything, render):
        assert [p["port"] for p in _policies(everything)["-head"]["egress"][0]["ports"]] == [443, 6443]
        alone = render(settings=("autoscaling.enabled=false",))
        assert _policies(alone)["-head"]["egress"] == []

    def test_empty_allow_lists_block_every_caller(self, render):
        closed = render(settings=("networkPolicy.allowFrom=[]", "networkPolicy.prometheus=[]"))
        assert _policies(closed)["-gateway"]["ingress"] == []
        assert all(rule["from"] for policy in _policies(closed).values() for rule in policy["ingress"])

    def test_allow_from_sets_the_gateways_callers(self, everything):
        (rule,) = _policies(everything)["-gateway"]["ingress"]
        assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}} in rule["from"]
        assert {"podSelector": {}} not in rule["from"]


class TestPorts:
    def test_pod_ports_are_distinct(self, each):
        for group, pod in each.ray_pods.items():
            params = each.groups[group]["rayStartParams"]
            taken = [*_ports(pod).values(), int(params["dashboard-agent-listen-port"])]
            assert len(taken) == len(set(taken))
            # The range of Ray's worker ports.
            assert not [port for port in taken if 10002 <= port <= 19999]
            assert _ports(pod)["metrics"] == int(params["metrics-export-port"])

    def test_the_configured_gateway_port_is_used_everywhere(self, render):
        moved = render(settings=("config.server.port=9000",))
        assert all(_ports(pod)["serve"] == 9000 for pod in moved.ray_pods.values())
        assert moved.serve_config["http_options"] == {"host": "0.0.0.0", "port": 9000}
        assert moved.one("Service")["spec"]["ports"] == [{"name": "http", "port": 9000, "targetPort": "serve"}]
        assert {"name": "GATEWAY_URL", "value": "http://ragtree:9000"} in ray_container(moved.one("Pod"))["env"]

    def test_the_head_has_the_port_names_that_kuberay_expects(self, each):
        assert {"gcs-server": 6379, "dashboard": 8265}.items() <= _ports(each.ray_pods["head"]).items()


class TestService:
    @pytest.mark.parametrize(("name", "groups"), [("defaults", ["retriever"]), ("gpu", ["gateway"])])
    def test_it_selects_only_pods_with_a_gateway(self, render, name, groups):
        release = render(name)
        selector = release.one("Service")["spec"]["selector"]
        found = [group for group, pod in release.pods.items() if selector.items() <= labels_of(pod).items()]
        assert found == groups
        for group in groups:
            assert "ragtree_gateway" in release.groups[group]["rayStartParams"]["resources"]

    def test_the_ingress_routes_to_it_without_buffering(self, everything):
        ingress = everything.one("Ingress")
        (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
        service = everything.one("Service")
        assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": "http"}}
        annotations = ingress["metadata"]["annotations"]
        assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
        assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= STREAMS_DRAIN_S


class TestPodDisruptionBudget:
    def test_each_selects_one_group_and_sets_min_available(self, defaults):
        kept = {}
        for budget in defaults.all("PodDisruptionBudget"):
            selector = budget["spec"]["selector"]
            (group,) = [name for name, pod in defaults.pods.items() if _selects(selector, labels_of(pod))]
            kept[group] = budget["spec"]["minAvailable"]
            # Kubernetes supports only this for pods that a custom resource owns.
            assert isinstance(kept[group], int)
            assert "maxUnavailable" not in budget["spec"]
        assert kept == {"head": 1, "retriever": 1, "generator": 1}

    def test_redis_allows_evicting_the_head_and_one_of_several_generators(self, everything):
        budgets = everything.all("PodDisruptionBudget")
        kept = {labels_of(b)["app.kubernetes.io/component"]: b["spec"]["minAvailable"] for b in budgets}
        assert kept == {"retriever": 1, "generator": 2}
        assert everything.cluster["gcsFaultToleranceOptions"]["redisAddress"] == "rediss://redis.data.svc:6380"


class TestNames:
    def test_they_fit_the_limits_of_kuberay_and_dns(self, render):
        for release in ("r" * 53, "r" * 41, "9" + "x" * 52, "ragtree", "a"):
            rendered = render("everything", release=release, settings=('fullnameOverride=""',))
            name = rendered.one("RayService")["metadata"]["name"]
            assert len(name) <= 47
            assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
            for manifest in rendered.manifests:
                assert len(manifest["metadata"]["name"]) <= (253 if manifest["kind"] == "ConfigMap" else 63)
                assert all(len(value) <= 63 for value in labels_of(manifest).values())

    def test_names_that_were_cut_off_differ_still(self, render):
        names = {render(release="r" * 50 + end).one("RayService")["metadata"]["name"] for end in ("a", "b", "c")}
        assert len(names) == 3

    def test_two_releases_live_in_one_namespace(self, render):
        one, other = render(release="one"), render(release="other")

        def objects(release):
            return {(manifest["kind"], manifest["metadata"]["name"]) for manifest in release.manifests}

        assert objects(one) & objects(other) == set()
        strangers = [labels_of(pod) for pod in other.pods.values()]
        for manifest in one.manifests:
            spec = manifest.get("spec", {})
            selector = spec.get("podSelector") or spec.get("selector")
            if selector:
                wanted = selector.get("matchLabels", selector)
                assert not [labels for labels in strangers if wanted.items() <= labels.items()]

    def test_an_upgrade_changes_no_selector(self, render, tmp_path):
        """Services and budgets still find the previous version's pods, and immutable fields do not change."""
        newer = shutil.copytree(CHART, tmp_path / "ragtree")
        text = (newer / "Chart.yaml").read_text()
        (newer / "Chart.yaml").write_text(text.replace("ersion: 0.1.0", "ersion: 0.2.0"))
        before, after = render("defaults"), Release(Helm(newer).render())
        assert after.one("RayService")["metadata"]["labels"]["app.kubernetes.io/version"] == "0.2.0"

        def selectors(release):
            return {
                (m["kind"], m["metadata"]["name"]): m["spec"].get("selector") or m["spec"].get("podSelector")
                for m in release.manifests
                if m["kind"] in {"Service", "NetworkPolicy", "PodDisruptionBudget"}
            }

        assert selectors(before) == selectors(after)
        assert [labels_of(p) for p in before.ray_pods.values()] == [labels_of(p) for p in after.ray_pods.values()]
        assert ray_container(after.ray_pods["head"])["image"] == "ragtree:0.2.0-cpu"
