"""The metrics that the gateway exposes, and those that vLLM declares."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx
import prometheus_client.core as families
from asgi_lifespan import LifespanManager
from gateway_fakes import Stack, whenever_possible
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import create_app
from gateway.settings import GatewaySettings
from protocol.cache import TierStats
from protocol.errors import EngineDied, Overloaded
from protocol.kv import KvMemory
from protocol.tiers import Tier

SCRAPED = {"namespace", "job", "instance"}
"""Labels that Prometheus adds."""


class Exposed(NamedTuple):
    """An exposed metric: its name in expressions, type, labels and help."""

    name: str
    type: str
    labels: frozenset[str]
    help: str

    @property
    def samples(self) -> set[str]:
        """The names of its samples."""
        if self.type == "histogram":
            return {f"{self.name}_{part}" for part in ("bucket", "sum", "count")}
        return {self.name}

    @property
    def sample_labels(self) -> frozenset[str]:
        """The labels of its samples."""
        return self.labels | {"le"} if self.type == "histogram" else self.labels


async def gateways_metrics() -> dict[str, Exposed]:
    """The gateway's own metrics by name, after traffic that creates all of them."""
    stack = Stack()
    stack.generator.kv = KvMemory("f", "b", 16, 1600, 9, 0, 0, 1.0, 1.0)
    stack.generator.cached, stack.generator.loaded = 5, {Tier.GPU: 2, Tier.HOST: 3}
    stack.controller.sources = (Tier.GPU, Tier.HOST)
    stack.controller.decide = whenever_possible
    stack.controller.tiers = tuple(TierStats(tier, None, 1000, 250, 50, 3, 7, tier.value) for tier in Tier)
    registry = CollectorRegistry()
    app = create_app(stack, GatewaySettings(), registry=registry)
    transport = httpx.ASGITransport(app=app)
    async with LifespanManager(app), httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        await client.post("/query", json={"query": "x", "stream": True})
        for phase, error in {"queue": Overloaded("full"), "decode": EngineDied("gone")}.items():
            stack.phases.failing = {phase: error}
            await client.post("/query", json={"query": "x"})
        stack.phases.failing = {}
        await client.put("/v1/collections/c/documents/d", content="x", headers={"Content-Type": "text/plain"})
        # After this check the engine is ready again, and its page size is known.
        await client.get("/readyz")
        text = (await client.get("/metrics")).text
    # The start time of a series is no metric of its own.
    found = (family for family in text_string_to_metric_families(text) if not family.name.endswith("_created"))
    return {metric.name: metric for metric in map(_exposed, found)}


def _exposed(family: families.Metric) -> Exposed:
    assert family.samples, f"nothing has happened of {family.name}"
    labels = {name for sample in family.samples for name in sample.labels} - {"le"}
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Exposed(name, family.type, frozenset(labels), family.documentation)


def vllms_metrics() -> dict[str, Exposed]:
    """vLLM's metrics, read from its source: importing vLLM is slow, and a GPU build needs a GPU."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    kinds = {"_gauge_cls": "gauge", "_counter_cls": "counter", "_histogram_cls": "histogram"}
    found: dict[str, Exposed] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in kinds:
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        name, kind = given.get("name"), kinds[node.func.attr]
        if not isinstance(name, ast.Constant):
            continue
        own = given.get("labelnames")
        added = {leaf.value for leaf in ast.walk(own) if isinstance(leaf, ast.Constant)} if own is not None else set()
        full = f"{name.value}_total" if kind == "counter" else name.value
        labels = frozenset({"model_name", "engine", "generator"} | {label for label in added if isinstance(label, str)})
        found[full] = Exposed(full, kind, labels, "")
    return found


def assert_exists(selected: str, labels: set[str], known: dict[str, Exposed]) -> None:
    """Fail if no metric has these samples with these labels."""
    metrics = [metric for metric in known.values() if selected in metric.samples]
    assert metrics, f"{selected} is not exposed"
    unknown = labels - metrics[0].sample_labels - SCRAPED
    assert not unknown, f"{selected} has no label {unknown}"
