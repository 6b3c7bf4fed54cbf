"""JSON schemas of custom resources: KubeRay's RayService, if available, and the Prometheus operator's kinds."""

import gzip
import os
from pathlib import Path
from typing import Any

import yaml

from scripts.chart.value_sets import ROOT

Schema = dict[str, Any]

DEFINITION = Path(
    os.environ.get("RAGTREE_RAYSERVICE_CRD", ROOT.parent / "shared" / "data" / "kuberay" / "ray.io_rayservices.yaml.gz")
)
"""KubeRay's custom resource definition of RayService (gzip). It is not part of the project."""

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _closed(required: list[str], **properties: Any) -> Schema:  # noqa: ANN401
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


_SELECTOR = _closed(["matchLabels"], matchLabels=_TEXTS)
_ENDPOINTS = {
    "type": "array",
    "minItems": 1,
    "items": _closed(["port"], port={"type": "string"}, path={"type": "string"}, interval={"pattern": "^[0-9]+[sm]$"}),
}
_RULE = {
    **_closed(
        ["expr"],
        alert={"type": "string"},
        record={"type": "string"},
        expr={"type": "string", "minLength": 1},
        labels=_TEXTS,
        annotations=_TEXTS,
        **{"for": {"pattern": "^[0-9]+[smhd]$"}, "keep_firing_for": {"pattern": "^[0-9]+[smhd]$"}},
    ),
    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
}
_GROUP = _closed(
    ["name", "rules"],
    name={"type": "string"},
    interval={"pattern": "^[0-9]+[sm]$"},
    rules={"type": "array", "minItems": 1, "items": _RULE},
)


def _resource(spec: Schema) -> Schema:
    return _closed(
        ["apiVersion", "kind", "metadata", "spec"], apiVersion={}, kind={}, metadata={"type": "object"}, spec=spec
    )


MONITORING: dict[str, Schema] = {
    "ServiceMonitor": _resource(_closed(["selector", "endpoints"], selector=_SELECTOR, endpoints=_ENDPOINTS)),
    "PodMonitor": _resource(
        _closed(
            ["selector", "podMetricsEndpoints"],
            selector=_SELECTOR,
            podTargetLabels={"type": "array", "items": {"type": "string"}},
            podMetricsEndpoints=_ENDPOINTS,
        )
    ),
    "PrometheusRule": _resource(_closed(["groups"], groups={"type": "array", "minItems": 1, "items": _GROUP})),
}
"""The Prometheus operator's resources, as far as the chart uses them."""


def ray_service() -> Schema | None:
    """Return KubeRay's schema of a RayService; None if the definition is not available.

    Kubernetes silently drops a field that the schema does not name. Here it is an error.
    """
    if not DEFINITION.is_file():
        return None
    resource = yaml.load(gzip.decompress(DEFINITION.read_bytes()), Loader=yaml.CSafeLoader)
    (version,) = (version for version in resource["spec"]["versions"] if version["name"] == "v1")
    schema: Schema = version["schema"]["openAPIV3Schema"]
    _close(schema)
    # The definition leaves metadata to Kubernetes.
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _close(schema: Schema) -> None:
    properties = schema.get("properties", {})
    if properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    below = [*properties.values(), schema.get("items"), schema.get("additionalProperties")]
    for part in below:
        if isinstance(part, dict):
            _close(part)
