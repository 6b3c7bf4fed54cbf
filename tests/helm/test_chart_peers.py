"""Generators that read each other's KV: the key that they share, its file in their pods, who reaches their ports."""

import base64
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from rendered_release import Release, labels_of, ray_container

from generator.peers.handshake import FEWEST_CHARACTERS
from generator.settings import PeerSettings
from scripts.chart.helm import Helm, HelmError
from scripts.chart.value_sets import CHART
from services.config import load_config

ON = "generator.peers.enabled=true"
OWN = ('generator.peers.existingSecret="ours"', 'generator.peers.key="shared"')
KEY_FILE = "RAGTREE_GENERATOR__KV__PEERS__KEY_FILE"


@pytest.fixture
def sharing(render) -> Release:
    return render(settings=(ON, "config.serving.generator.max_replicas=3"))


def _key(secret) -> str:
    (encoded,) = secret["data"].values()
    return base64.b64decode(encoded).decode()


def _key_files(pod) -> list[str]:
    """The paths of the mounted keys in a pod."""
    return [mount["mountPath"] for mount in ray_container(pod)["volumeMounts"] if mount["name"] == "peers-key"]


def _key_volumes(pod):
    return [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]


class TestOff:
    """The default: KV is not encrypted on its way, so a cluster has to be asked before it sends any."""

    def test_without_peers_there_is_no_secret_and_no_key(self, defaults):
        assert defaults.all("Secret") == []
        for pod in defaults.ray_pods.values():
            assert (_key_files(pod), _key_volumes(pod)) == ([], [])
            assert KEY_FILE not in {variable["name"] for variable in ray_container(pod)["env"]}

    def test_a_secret_alone_turns_nothing_on(self, render, defaults):
        assert render(settings=OWN).ray_pods == defaults.ray_pods


class TestKey:
    def test_only_generators_have_the_file_and_cannot_write_it(self, each):
        for group, pod in each.ray_pods.items():
            if group not in {"generator", "kv-generator"} or not each.all("Secret"):
                assert (_key_files(pod), _key_volumes(pod)) == ([], [])
                continue
            (mount,) = (m for m in ray_container(pod)["volumeMounts"] if m["name"] == "peers-key")
            assert mount["readOnly"] is True
            (volume,) = _key_volumes(pod)
            assert mount["subPath"] == volume["items"][0]["path"]
            # User 1000 reads it as a member of fsGroup, and nobody else does.
            assert volume["defaultMode"] == 0o440

    def test_the_secret_that_the_pods_mount_has_the_key(self, sharing, everything):
        for release in (sharing, everything):
            secret = release.one("Secret")
            (volume,) = _key_volumes(release.ray_pods["generator"])
            assert volume["secretName"] == secret["metadata"]["name"]
            assert [item["key"] for item in volume["items"]] == list(secret["data"])

    def test_the_options_of_every_pod_name_the_file(self, sharing, monkeypatch):
        """Any pod may read the generators' options and pass them on."""
        (path,) = _key_files(sharing.ray_pods["generator"])
        for pod in sharing.ray_pods.values():
            (value,) = (v["value"] for v in ray_container(pod)["env"] if v["name"] == KEY_FILE)
            monkeypatch.setenv(KEY_FILE, value)
            assert load_config().generator.kv.peers == PeerSettings(key_file=path)

    def test_the_new_key_is_random_and_long_enough(self, chart):
        keys = {_key(Release(chart.render(settings=[ON])).one("Secret")) for _ in range(2)}
        assert len(keys) == 2
        assert all(len(key) >= 2 * FEWEST_CHARACTERS for key in keys)

    def test_another_key_changes_no_pod(self, chart):
        """Otherwise tools that render without a cluster would have KubeRay build a new one each time."""
        one, other = (Release(chart.render(settings=[ON])) for _ in range(2))
        assert one.one("Secret") != other.one("Secret")
        assert one.ray_service == other.ray_service

    def test_an_existing_secret_is_mounted_and_none_is_created(self, render):
        given = render(settings=(ON, *OWN))
        assert given.all("Secret") == []
        (volume,) = _key_volumes(given.ray_pods["generator"])
        assert (volume["secretName"], volume["items"]) == ("ours", [{"key": "shared", "path": "key"}])


class TestUpgrade:
    """What becomes of a key that is already in the cluster. A small server stands for the cluster."""

    @pytest.fixture(scope="class")
    def secret_alone(self, tmp_path_factory):
        """The chart without its other objects, whose kinds the server would have to know."""
        copy = shutil.copytree(CHART, tmp_path_factory.mktemp("chart") / "ragtree")
        for template in (copy / "templates").glob("*.yaml"):
            if template.name != "secret.yaml":
                template.unlink()
        shutil.rmtree(copy / "templates" / "tests")
        return _HelmInCluster(copy)

    def test_it_is_kept(self, secret_alone):
        assert secret_alone.secret({"peers-key": "the key of the first install"}) == {
            "peers-key": "the key of the first install"
        }

    def test_a_cluster_without_the_secret_gets_a_new_one(self, secret_alone):
        (key,) = secret_alone.secret(None).values()
        assert len(key) >= FEWEST_CHARACTERS

    def test_a_secret_without_the_named_key_gets_one(self, secret_alone):
        (key,) = secret_alone.secret({"other": "value"}).values()
        assert len(key) >= FEWEST_CHARACTERS
        assert key != "value"


class _HelmInCluster(Helm):
    def secret(self, present: dict[str, str] | None) -> dict[str, str]:
        """What the chart's Secret holds if the cluster has one that holds ``present``."""
        with _cluster(present) as url:
            server = ("--kube-apiserver", url, "--dry-run=server", "--disable-openapi-validation")
            text = self._run("template", "ragtree", str(self._chart), "--namespace", "rag", "--set-json", ON, *server)
        (secret,) = (manifest for manifest in yaml.safe_load_all(text) if manifest)
        return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


@contextmanager
def _cluster(present: dict[str, str] | None) -> Iterator[str]:
    """Kubernetes' API as far as helm needs it to look up one Secret."""
    kinds = [{"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}]
    replies = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": kinds},
    }
    if present is not None:
        data = {name: base64.b64encode(value.encode()).decode() for name, value in present.items()}
        metadata = {
            "name": "ragtree-peers",
            # What an earlier install has set. Without it, helm takes the Secret for someone else's.
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "ragtree", "meta.helm.sh/release-namespace": "rag"},
        }
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        replies["/api/v1/namespaces/rag/secrets/ragtree-peers"] = secret

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = replies.get(self.path.partition("?")[0])
            failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(reply or failure).encode()
            self.send_response(200 if reply else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TestNetwork:
    """Which pods the policies let reach the ports at which generators serve KV. Peers choose any port by default."""

    STRANGERS = (
        {},
        {"app.kubernetes.io/name": "ragtree", "app.kubernetes.io/instance": "another"},
        {"app.kubernetes.io/name": "prometheus"},
        {"app.kubernetes.io/name": "kuberay-operator"},
        {"app.kubernetes.io/component": "generator"},
    )

    @pytest.mark.parametrize("port", [9000, 41234])
    def test_generators_reach_each_other(self, sharing, port):
        generator = labels_of(sharing.ray_pods["generator"])
        assert _allowed(sharing, generator, generator, port)

    @pytest.mark.parametrize("port", [9000, 41234])
    @pytest.mark.parametrize("stranger", STRANGERS)
    def test_nobody_outside_of_the_release_does(self, sharing, stranger, port):
        assert not _allowed(sharing, stranger, labels_of(sharing.ray_pods["generator"]), port)

    def test_the_check_sees_what_is_open(self, sharing):
        prometheus = {"app.kubernetes.io/name": "prometheus"}
        assert _allowed(sharing, prometheus, labels_of(sharing.ray_pods["generator"]), "metrics")

    def test_without_policies_the_notes_warn(self, notes):
        assert "KV unencrypted" in notes(ON, "networkPolicy.enabled=false")
        assert "KV unencrypted" not in notes(ON)
        assert "KV unencrypted" not in notes("networkPolicy.enabled=false")


def _allowed(release: Release, source: dict[str, str], target: dict[str, str], port: int | str) -> bool:
    """Whether the policies let one pod of the namespace reach another, out of the first and into the second."""
    policies = [policy["spec"] for policy in release.all("NetworkPolicy")]
    return _open(policies, "Ingress", source, target, port) and _open(policies, "Egress", target, source, port)


def _open(policies, direction: str, peer: dict[str, str], pod: dict[str, str], port: int | str) -> bool:
    own = [p for p in policies if direction in p["policyTypes"] and _selects(p["podSelector"], pod)]
    rules = [rule for policy in own for rule in policy[direction.lower()]]
    return not own or any(
        _names_peer(rule.get({"Ingress": "from", "Egress": "to"}[direction]), peer)
        and ("ports" not in rule or port in [named["port"] for named in rule["ports"]])
        for rule in rules
    )


def _names_peer(peers, labels: dict[str, str]) -> bool:
    return not peers or any(_selects(peer["podSelector"], labels) for peer in peers if "podSelector" in peer)


def _selects(selector, labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


class TestRefusals:
    @pytest.mark.parametrize(
        ("setting", "told"),
        [
            ("generator.peers.secret={}", "'/generator/peers': additional properties 'secret' not allowed"),
            ('generator.peers.key=""', "'/generator/peers/key'"),
            ('config.generator.kv.peers.key_file="/key"', "Use generator.peers"),
            ('config.generator.kv.peers.host="10.0.0.1"', "all pods would have the same address"),
            ("config.generator.kv.peers.port=8080", "it is the gateway's port"),
            ("config.generator.kv.peers.port=8090", "'/config/generator/kv/peers/port'"),
            ("config.generator.kv.peers.port=10500", "'/config/generator/kv/peers/port'"),
        ],
    )
    def test_values_that_cannot_work_are_refused_with_a_reason(self, chart, setting, told):
        with pytest.raises(HelmError) as refused:
            chart.render(settings=[ON, setting])
        assert told in str(refused.value)

    def test_port_and_timeout_are_options_like_others(self, render):
        fixed = render(settings=(ON, "config.generator.kv.peers.port=9400"))
        assert fixed.options["generator"]["kv"]["peers"] == {"port": 9400}
