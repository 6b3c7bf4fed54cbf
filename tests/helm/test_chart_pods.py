"""Pods: unprivileged users, read-only roots, secrets by reference, probes, drains, memory and disk."""

import json
import re

import pytest
from rendered_release import labels_of, ray_container

from scripts.chart.value_sets import CHART, ROOT

GIB, MIB = 1024**3, 1024**2


def _containers(pod):
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def _env(container):
    return {variable["name"]: variable for variable in container["env"]}


def _bytes(quantity):
    return int(float(quantity[:-2]) * {"Mi": MIB, "Gi": GIB}[quantity[-2:]])


def _volumes(pod):
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


class TestSecurity:
    def test_every_container_runs_unprivileged(self, each):
        contexts = [container["securityContext"] for pod in each.pods.values() for container in _containers(pod)]
        if options := each.cluster.get("autoscalerOptions"):
            contexts.append(options["securityContext"])
        assert len(contexts) >= 4
        for context in contexts:
            assert context == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            }

    def test_every_pod_runs_as_user_1000_under_the_runtimes_seccomp_profile(self, each):
        for pod in each.pods.values():
            context = pod["spec"]["securityContext"]
            assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (1000, 1000, 1000)
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
            assert not [v for v in pod["spec"].get("volumes", []) if "hostPath" in v]

    def test_writable_folders_are_volumes(self, each):
        for template in each.ray_pods.values():
            mounts = {mount["mountPath"]: mount for mount in ray_container(template)["volumeMounts"]}
            writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
            assert writable == {"/tmp", "/dev/shm", "/data", "/cache"}
            assert {mount["name"] for mount in mounts.values()} <= _volumes(template).keys()
            assert _volumes(template)["shm"]["emptyDir"]["medium"] == "Memory"

    def test_folders_that_the_image_writes_to_are_mounted(self, each):
        """The image's environment variables name the folders. Everything else is read-only."""
        dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
        places = dict(re.findall(r"^(?:ENV|   ) (\w+)=(/[^:\s]+) ?\\?$", dockerfile, re.MULTILINE))
        assert {"HOME": "/tmp", "RAGTREE_DATA_DIR": "/data", "XDG_CACHE_HOME": "/cache"}.items() <= places.items()
        for template in each.ray_pods.values():
            mounted = [mount["mountPath"] for mount in ray_container(template)["volumeMounts"]]
            assert [place for place in places.values() if f"/{place.split('/')[1]}" not in mounted] == []

    def test_the_images_entrypoint_runs_before_ray(self, each):
        """KubeRay replaces the container's command with its own."""
        for template in each.ray_pods.values():
            (before,) = template["spec"]["initContainers"]
            assert before["image"] == ray_container(template)["image"]
            assert (before.get("command"), before["args"]) == (None, ["true"])
            assert {mount["mountPath"] for mount in before["volumeMounts"]} == {"/tmp", "/data", "/cache"}

    def test_service_variables_are_not_mistaken_for_options(self, each):
        assert all(pod["spec"]["enableServiceLinks"] is False for pod in each.pods.values())

    def test_options_are_mounted_as_one_file_at_the_configured_path(self, each):
        name = each.one("RayService")["metadata"]["name"]
        for template in each.ray_pods.values():
            (mount,) = (m for m in ray_container(template)["volumeMounts"] if m["name"] == "config")
            path = _env(ray_container(template))["RAGTREE_CONFIG"]["value"]
            assert (mount["mountPath"], mount["subPath"]) == (path, "ragtree.yaml")
            assert _volumes(template)["config"]["configMap"]["name"] == name
            assert "ragtree.yaml" in each.one("ConfigMap", name)["data"]

    def test_only_the_autoscaler_may_call_kubernetes(self, each):
        token = "/var/run/secrets/kubernetes.io/serviceaccount"
        for pod in each.pods.values():
            assert pod["spec"]["automountServiceAccountToken"] is False
            assert not [m for c in _containers(pod) for m in c.get("volumeMounts", []) if m["mountPath"] == token]
        for account in each.all("ServiceAccount"):
            assert account["automountServiceAccountToken"] is False
        autoscaler = each.cluster.get("autoscalerOptions")
        assert (autoscaler is not None) == each.cluster["enableInTreeAutoscaling"]
        if autoscaler:
            mounted = {mount["mountPath"]: mount["name"] for mount in autoscaler["volumeMounts"]}
            sources = _volumes(each.ray_pods["head"])[mounted[token]]["projected"]["sources"]
            assert {next(iter(source)) for source in sources} == {"serviceAccountToken", "configMap", "downwardAPI"}

    def test_the_chart_contains_no_secrets(self, each):
        """It creates one only, whose content is random."""
        release = each.one("RayService")["metadata"]["name"]
        assert {secret["metadata"]["name"] for secret in each.all("Secret")} <= {f"{release}-peers"}
        names = ("KEY", "TOKEN", "PASSWORD", "REDIS__URL")
        for pod in each.pods.values():
            for container in _containers(pod):
                for variable in container.get("env", []):
                    if any(word in variable["name"] for word in names) and not variable["name"].endswith("_KEY_FILE"):
                        assert set(variable) == {"name", "valueFrom"} or variable["name"] == "KEYS_REQUIRED"
        if ft := each.cluster.get("gcsFaultToleranceOptions"):
            assert set(ft["redisPassword"]) == set(ft["redisUsername"]) == {"valueFrom"}

    def test_every_ray_container_gets_the_secrets_by_name(self, everything):
        for template in everything.ray_pods.values():
            found = {
                name: variable["valueFrom"]["secretKeyRef"]
                for name, variable in _env(ray_container(template)).items()
                if "valueFrom" in variable
            }
            assert found == {
                "RAGTREE_GATEWAY__API_KEYS": {"name": "ragtree-keys", "key": "api-keys"},
                "RAGTREE_GATEWAY__ADMIN_KEY": {"name": "ragtree-keys", "key": "admin-key"},
                "RAGTREE_REDIS__URL": {"name": "redis-login", "key": "url"},
                "HF_TOKEN": {"name": "hub", "key": "hf"},
            }
        assert everything.cluster["authOptions"] == {"mode": "token", "secretName": "ray-token"}

    def test_releases_with_a_shared_redis_use_different_prefixes(self, render):
        def prefix(*settings, release="ragtree"):
            used = render("everything", release=release, settings=('fullnameOverride=""', *settings))
            return _env(ray_container(used.ray_pods["gateway"])).get("RAGTREE_REDIS__PREFIX", {}).get("value")

        assert prefix() == "ragtree:rag:ragtree"
        assert prefix(release="other") == "ragtree:rag:other-ragtree"
        assert prefix('config.redis.prefix="ours"') is None


class TestProbesAndDrains:
    def test_liveness_checks_the_pods_ray_and_readiness_the_stack(self, each):
        for group, template in each.ray_pods.items():
            container = ray_container(template)
            own = {"path": "/api/healthz", "port": 52365}
            assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"] == own
            assert each.groups[group]["rayStartParams"]["dashboard-agent-listen-port"] == "52365"
            stack = own if group == "head" else {"path": "/readyz", "port": "serve"}
            assert container["readinessProbe"]["httpGet"] == stack

    @pytest.mark.parametrize(("name", "seconds"), [("defaults", 600), ("gpu", 1800)])
    def test_the_startup_probe_waits_for_the_model(self, render, name, seconds):
        probe = ray_container(render(name).ray_pods["generator"])["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == seconds

    def test_the_grace_period_exceeds_the_longest_drain(self, each):
        drains = {
            application["name"].partition("-")[0]: application["deployments"][0]["graceful_shutdown_timeout_s"]
            for application in each.serve_config["applications"]
        }
        runs = {
            "head": [],
            "generator": ["generator"],
            "kv-generator": ["kv_generator"],
            "gateway": ["gateway"],
            "retriever": ["retriever", "controller"] + ([] if "gateway" in each.groups else ["gateway"]),
        }
        for group, template in each.ray_pods.items():
            drain = max((drains[part] for part in runs[group]), default=0)
            assert _env(ray_container(template))["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]["value"] == str(drain)
            pause = int(ray_container(template)["lifecycle"]["preStop"]["exec"]["command"][1])
            assert template["spec"]["terminationGracePeriodSeconds"] >= drain + pause + 30
            # The head must stay up while the other pods drain.
            assert pause == (15 if group == "head" else 5)
        assert each.ray_service["rayClusterDeletionDelaySeconds"] == max(drains.values())


class TestRoom:
    def test_shared_memory_fits_the_arena_and_rays_objects_and_counts_as_pod_memory(self, each):
        arena = each.options["generator"]["kv"]["host_gib"] * GIB
        for group, template in each.ray_pods.items():
            objects = int(each.groups[group]["rayStartParams"]["object-store-memory"])
            shared = _bytes(_volumes(template)["shm"]["emptyDir"]["sizeLimit"])
            assert shared >= objects + (arena if group in {"generator", "kv-generator"} else 0)
            assert shared <= 0.5 * _bytes(ray_container(template)["resources"]["limits"]["memory"])

    def test_the_disk_is_larger_than_the_kv_limit(self, render):
        node = _volumes(render("defaults").ray_pods["generator"])["data"]["emptyDir"]["sizeLimit"]
        assert _bytes(node) > 8 * GIB
        claim = _volumes(render("everything").ray_pods["generator"])["data"]["ephemeral"]["volumeClaimTemplate"]["spec"]
        assert claim["storageClassName"] == "fast"
        assert _bytes(claim["resources"]["requests"]["storage"]) > 50 * GIB

    def test_documents_are_in_a_claim_that_outlives_the_release(self, defaults):
        claim = defaults.one("PersistentVolumeClaim")
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        mounted = _volumes(defaults.ray_pods["retriever"])["data"]["persistentVolumeClaim"]["claimName"]
        assert mounted == claim["metadata"]["name"]
        assert [g for g, t in defaults.ray_pods.items() if "persistentVolumeClaim" in _volumes(t)["data"]] == [
            "retriever"
        ]

    def test_an_existing_claim_is_used(self, render):
        given = render(settings=('retriever.persistence.existingClaim="mine"',))
        assert given.all("PersistentVolumeClaim") == []
        assert _volumes(given.ray_pods["retriever"])["data"]["persistentVolumeClaim"] == {"claimName": "mine"}


class TestPresets:
    def test_cpu_preset_uses_the_cpu_image(self, render):
        cpu = render("cpu")
        assert {ray_container(pod)["image"] for pod in cpu.pods.values()} == {"ragtree:0.1.0-cpu"}
        assert "nvidia.com/gpu" not in json.dumps(cpu.ray_service)

    def test_gpu_preset_uses_the_gpu_image_and_one_gpu_per_generator(self, render):
        gpu = render("gpu")
        assert {ray_container(pod)["image"] for pod in gpu.pods.values()} == {"ragtree:0.1.0-gpu"}
        limits = {group: ray_container(pod)["resources"]["limits"] for group, pod in gpu.ray_pods.items()}
        assert {group: limit.get("nvidia.com/gpu") for group, limit in limits.items()} == {
            "head": None,
            "retriever": None,
            "generator": 1,
            "gateway": None,
        }
        assert gpu.groups["generator"]["maxReplicas"] == 4

    def test_a_digest_overrides_the_tag(self, everything):
        for pod in everything.pods.values():
            image = ray_container(pod)["image"]
            assert image.startswith("registry.example.com/ml/ragtree@sha256:")
            assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]

    def test_each_group_has_its_own_scheduling_settings(self, everything):
        pods = everything.ray_pods
        assert pods["head"]["spec"]["nodeSelector"] == {"pool": "system"}
        assert pods["head"]["metadata"]["annotations"]["example.com/team"] == "search"
        assert pods["generator"]["spec"]["runtimeClassName"] == "nvidia"
        assert pods["generator"]["spec"]["affinity"]["podAntiAffinity"]
        assert "nodeSelector" not in pods["generator"]["spec"]
        assert _env(ray_container(pods["gateway"]))["RAY_SERVE_THROUGHPUT_OPTIMIZED"]["value"] == "1"


def test_changed_options_change_every_pod(render):
    def pods(*settings):
        return render(settings=settings).ray_pods

    before, after = pods(), pods("config.generator.max_num_seqs=3")
    assert all(before[group] != after[group] for group in before)
    assert {group: labels_of(pod) for group, pod in before.items()} == {g: labels_of(pod) for g, pod in after.items()}


def test_unrelated_settings_do_not_change_the_pods(render):
    """KubeRay rebuilds the cluster if a pod changes, so pods have no label with the chart's version."""
    for template in render("defaults").ray_pods.values():
        assert labels_of(template).keys() <= {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
            "ragtree/gateway",
        }
    assert render(settings=("metrics.serviceMonitor.enabled=true",)).ray_pods == render("defaults").ray_pods


def test_the_script_of_the_test_pod_compiles():
    compile((CHART / "files" / "ask.py").read_text(), "ask.py", "exec")
