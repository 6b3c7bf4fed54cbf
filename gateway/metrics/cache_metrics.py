"""The controller's gauges and counters as Prometheus metrics."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.metrics.part_metrics import PartMetrics
from gateway.readiness import Readiness
from gateway.wire.cache_replies import token_bytes
from protocol.parts import Controller
from protocol.plans import ControllerStats, InstanceLoad


class CacheMetrics(PartMetrics[ControllerStats]):
    """The queue and the tiers. Sizes in bytes are missing if the engine does not report the size of a token's KV."""

    def __init__(
        self, registry: CollectorRegistry, controller: Controller, readiness: Readiness, timeout_s: float
    ) -> None:
        self._readiness = readiness
        super().__init__(registry, controller.stats, timeout_s)

    def families(self, answer: ControllerStats) -> Iterator[Metric]:
        """The queue, and each kind of tier over all instances."""
        yield GaugeMetricFamily("ragtree_queue_depth", "Queued queries.", answer.queued)
        yield GaugeMetricFamily(
            "ragtree_plans_running", "Plans that run on engines, including speculative ones.", answer.running
        )
        instances = GaugeMetricFamily(
            "ragtree_instances",
            "Instances of the generator by state: serving, retired and about to end, generating KV only, or refused.",
            labels=["state"],
        )
        states = Counter({"serving": 0, "retired": 0, "kv_generator": 0, "refused": 0})
        states.update(_state(instance) for instance in answer.instances)
        for state, count in states.items():
            instances.add_metric([state], count)
        yield instances
        yield CounterMetricFamily(
            "ragtree_cache_prepared_tokens",
            "Prompt tokens loaded or computed for queued queries before their admission.",
            answer.prepared_tokens,
        )
        yield CounterMetricFamily(
            "ragtree_cache_generated_tokens",
            "Prompt tokens that KV generators computed for queued queries.",
            answer.generated_tokens,
        )
        yield CounterMetricFamily(
            "ragtree_cache_peer_tokens", "Tokens whose KV was read on another machine.", answer.peer_tokens
        )
        yield CounterMetricFamily(
            "ragtree_cache_peer_failures",
            "Reads on another machine that it did not serve in time. The tokens were computed.",
            answer.peer_failures,
        )
        yield CounterMetricFamily(
            "ragtree_cache_moves_given_up",
            "Moves of KV that were lost with three instances, one after another.",
            answer.moves_given_up,
        )
        evictions, used, capacity = Counter[str](), Counter[str](), Counter[str]()
        for tier in answer.tiers:
            evictions[tier.tier.value] += tier.evictions
            used[tier.tier.value] += tier.used_tokens
            capacity[tier.tier.value] += tier.capacity_tokens
        evicted = CounterMetricFamily(
            "ragtree_cache_evictions", "Nodes evicted from a tier since the controller's start.", labels=["tier"]
        )
        for name, nodes in evictions.items():
            evicted.add_metric([name], nodes)
        yield evicted
        size = token_bytes(self._readiness)
        if size is not None:
            yield _bytes("ragtree_cache_bytes", "KV in a tier.", used, size)
            yield _bytes("ragtree_cache_capacity_bytes", "Capacity of a tier for KV.", capacity, size)


def _bytes(name: str, documentation: str, tokens: Counter[str], token_bytes: float) -> Metric:
    family = GaugeMetricFamily(name, documentation, labels=["tier"])
    for tier, count in tokens.items():
        family.add_metric([tier], count * token_bytes)
    return family


def _state(instance: InstanceLoad) -> str:
    if instance.refused:
        return "refused"
    if instance.retired:
        return "retired"
    return "kv_generator" if instance.kv_generator else "serving"
