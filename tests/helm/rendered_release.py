"""A rendered release and its manifests by kind."""

from typing import Any

import yaml

from scripts.chart.helm import Manifest
from scripts.chart.manifests import pod_templates


class Release:
    """The manifests of one rendering."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests

    def all(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, suffix: str = "") -> Manifest:
        (found,) = (m for m in self.all(kind) if m["metadata"]["name"].endswith(suffix))
        return found

    @property
    def ray_service(self) -> Manifest:
        return self.one("RayService")["spec"]

    @property
    def cluster(self) -> dict[str, Any]:
        return self.ray_service["rayClusterConfig"]

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        return {"head": self.cluster["headGroupSpec"]} | {g["groupName"]: g for g in self.cluster["workerGroupSpecs"]}

    @property
    def ray_pods(self) -> dict[str, Any]:
        return pod_templates(self.one("RayService"))

    @property
    def pods(self) -> dict[str, Any]:
        """All pods: Ray's templates, and the chart's own pods."""
        return self.ray_pods | {"test": self.one("Pod")}

    @property
    def serve_config(self) -> dict[str, Any]:
        return yaml.safe_load(self.ray_service["serveConfigV2"])

    @property
    def options(self) -> dict[str, Any]:
        (text,) = (m["data"]["ragtree.yaml"] for m in self.all("ConfigMap") if "ragtree.yaml" in m["data"])
        return yaml.safe_load(text)


def ray_container(template: Manifest) -> dict[str, Any]:
    return template["spec"]["containers"][0]


def labels_of(pod: Manifest) -> dict[str, str]:
    return pod["metadata"]["labels"]
