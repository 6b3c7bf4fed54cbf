"""Checks rendered manifests against the schemas of Kubernetes, KubeRay and the Prometheus operator."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
from kubernetes_validate import utils as kubernetes_schemas

from scripts.chart.custom_resources import MONITORING, Schema
from scripts.chart.helm import Manifest

OLDEST_KUBERNETES = "1.29"
"""The oldest version that the chart's kubeVersion allows."""

# Without a cache it would read its definitions for each manifest.
kubernetes_schemas.schema_contents = cache(kubernetes_schemas.schema_contents)


class ManifestChecker:
    """Finds faults in manifests. Without KubeRay's schema, only the pods of a RayService are checked."""

    def __init__(self, ray_service: Schema | None) -> None:
        schemas = MONITORING | ({"RayService": ray_service} if ray_service else {})
        self._custom = {kind: jsonschema.Draft202012Validator(schema) for kind, schema in schemas.items()}

    def faults(self, manifest: Manifest) -> list[str]:
        """Return one line for each fault."""
        kind = manifest["kind"]
        if kind == "RayService":
            found = [*self._custom_faults(manifest), *_pod_faults(manifest)]
        elif kind in self._custom:
            found = [*self._custom_faults(manifest)]
        else:
            found = [*_kubernetes_faults(manifest)]
        return [f"{kind}/{manifest['metadata']['name']}: {fault}" for fault in found]

    def _custom_faults(self, manifest: Manifest) -> Iterator[str]:
        if validator := self._custom.get(manifest["kind"]):
            for error in validator.iter_errors(manifest):
                yield _told(error)


def pod_templates(ray_service: Manifest) -> dict[str, Any]:
    """Return the pod templates of a RayService by group name; the head's group is ``head``."""
    cluster = ray_service["spec"]["rayClusterConfig"]
    workers = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **workers}


def _pod_faults(ray_service: Manifest) -> Iterator[str]:
    for group, template in pod_templates(ray_service).items():
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": group}, "template": template}
        for fault in _kubernetes_faults(pods):
            yield f"{group}: {fault}"


def _kubernetes_faults(manifest: Manifest) -> Iterator[str]:
    for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"Kubernetes {version}: {_told(error)}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield error.message


def _told(error: jsonschema.ValidationError) -> str:
    place = ".".join(map(str, error.absolute_path))
    return f"{place}: {error.message[:300]}"
