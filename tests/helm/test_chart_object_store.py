"""KV in an object store: who has its credentials, who reaches it, and that no credentials are values."""

import os

import pytest
from obstore.store import GCSStore
from rendered_release import labels_of, ray_container

from generator.settings import ObjectStoreSettings
from scripts.chart.helm import HelmError

S3 = 'config.generator.kv.object_store={"url": "s3://kv/ragtree"}'
SECRET = 'secrets.objectStore.existingSecret="store-login"'
WITH_KV_GENERATORS = "config.serving.kv_generators.replicas=1"
KV_GROUPS = {"generator", "kv-generator"}


def _given(release) -> dict[str, list]:
    """By group, the Secrets whose keys become variables."""
    return {group: ray_container(pod).get("envFrom", []) for group, pod in release.pods.items()}


def _policies(release) -> dict[str, dict]:
    return {
        policy["metadata"]["name"]: policy["spec"]
        for policy in release.all("NetworkPolicy")
        if policy["metadata"]["name"].endswith("-object-store")
    }


class TestCredentials:
    def test_only_pods_with_kv_have_them(self, render):
        given = _given(render(settings=(S3, SECRET, WITH_KV_GENERATORS)))
        assert {group for group, sources in given.items() if sources} == KV_GROUPS
        assert all(given[group] == [{"secretRef": {"name": "store-login"}}] for group in KV_GROUPS)

    def test_without_a_secret_no_pod_has_any(self, each, render):
        assert not any(_given(render(settings=(S3,))).values())
        if "object_store" not in each.options["generator"]["kv"]:
            assert not any(_given(each).values())

    def test_a_variable_of_the_chart_wins_over_the_secret(self, render):
        """Kubernetes prefers `env` to `envFrom`, so the Secret cannot change where the options are."""
        container = ray_container(render(settings=(S3, SECRET)).ray_pods["generator"])
        assert {"RAGTREE_CONFIG", "RAGTREE_DATA_DIR", "RAGTREE_CACHE_DIR"} <= {one["name"] for one in container["env"]}

    def test_the_options_have_the_store_and_no_credentials(self, render):
        release = render(settings=(S3, SECRET))
        assert ObjectStoreSettings(**release.options["generator"]["kv"]["object_store"]).url == "s3://kv/ragtree"
        assert release.all("Secret") == []

    def test_the_key_of_google_can_be_a_variable(self, monkeypatch):
        """A file, as GOOGLE_APPLICATION_CREDENTIALS names one, would have to be mounted."""
        assert "GOOGLE_APPLICATION_CREDENTIALS" not in os.environ
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")
        with pytest.raises(Exception, match="private_key"):
            GCSStore.from_url("gs://kv/ragtree")


class TestNetwork:
    def test_only_pods_with_kv_reach_it(self, render):
        release = render(settings=(S3, WITH_KV_GENERATORS))
        policies = _policies(release).values()
        reached = {
            group
            for group, pod in release.pods.items()
            for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= labels_of(pod).items()
        }
        assert (reached, len(policies)) == (KV_GROUPS, 2)
        for policy in policies:
            assert policy["policyTypes"] == ["Egress"]
            assert policy["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]

    @pytest.mark.parametrize(
        ("endpoint", "port"),
        [
            ("https://minio.data.svc:9000", 9000),
            ("https://minio.data.svc", 443),
            ("http://minio.data.svc", 80),
            ("http://minio.data.svc:9000/", 9000),
            ("https://[fd00::1]", 443),
            ("https://[fd00::1]:9000", 9000),
        ],
    )
    def test_the_port_is_that_of_the_endpoint(self, render, endpoint, port):
        store = f'config.generator.kv.object_store={{"url": "s3://kv", "endpoint": "{endpoint}"}}'
        (policy,) = _policies(render(settings=(store,))).values()
        assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [port]

    def test_addresses_can_be_named(self, render):
        (policy,) = _policies(
            render(settings=(S3, 'networkPolicy.objectStore=[{"ipBlock": {"cidr": "10.0.0.9/32"}}]'))
        ).values()
        assert [rule["to"] for rule in policy["egress"]] == [[{"ipBlock": {"cidr": "10.0.0.9/32"}}]]

    def test_without_a_store_or_policies_there_is_none(self, defaults, render):
        assert _policies(defaults) == {}
        assert _policies(render(settings=('config.generator.kv.object_store={"url": "file:///kv"}',))) == {}
        assert render(settings=(S3, "networkPolicy.enabled=false")).all("NetworkPolicy") == []


def test_a_store_without_credentials_is_pointed_out(notes):
    assert "NOTE: neither secrets.objectStore nor" in notes(S3)
    role = 'serviceAccount.annotations={"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/kv"}'
    for named in (SECRET, role):
        assert "secrets.objectStore" not in notes(S3, named)
    assert "secrets.objectStore" not in notes()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([SECRET], "there is no object store"),
        ([SECRET, "config.generator.kv.object_store=null"], "there is no object store"),
        (['config.generator.kv.object_store={"url": "s3://id:hush@kv"}'], "credentials belong in a Secret"),
        (['config.generator.kv.object_store={"url": "az://kv?sig=hush"}'], "credentials belong in a Secret"),
        (
            ['config.generator.kv.object_store={"url": "s3://kv", "endpoint": "https://id:hush@minio"}'],
            "credentials belong in a Secret",
        ),
        (['env.AWS_SECRET_ACCESS_KEY="hush"'], "env.AWS_SECRET_ACCESS_KEY: it belongs in a Secret"),
        (['env.GOOGLE_SERVICE_ACCOUNT_KEY="hush"'], "it belongs in a Secret"),
        (['env.AZURE_STORAGE_ACCOUNT_KEY="hush"'], "it belongs in a Secret"),
        (['secrets.objectStore.key="hush"'], "additional properties 'key' not allowed"),
    ],
)
def test_credentials_in_values_and_credentials_for_nothing_are_refused(chart, settings, told):
    with pytest.raises(HelmError) as refused:
        chart.render(settings=settings)
    assert told in str(refused.value)
