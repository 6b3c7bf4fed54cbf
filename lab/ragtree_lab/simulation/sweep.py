"""Hit rate by cache size: all policies on one workload with growing host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cachectl.tiers.location import Capacities
from protocol.errors import ConfigError
from ragtree_lab.simulation.comparison import PoliciesResult, PolicyBenchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cachectl.costs.device_profile import DeviceProfile
    from ragtree_lab.simulation.simulator import SimulatedService
    from ragtree_lab.workloads.workload import Workload

FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)


class SweepResult(msgspec.Struct, frozen=True):
    """Results at each size, smallest first."""

    trace: str
    sizes: list[PoliciesResult]


def sweep(
    device: DeviceProfile,
    capacities: Capacities,
    service: SimulatedService,
    workload: Workload,
    policies: Sequence[str],
    progress: Callable[[str, int], None],
) -> SweepResult:
    """Simulate with 1/8 to 4 times the given host memory, or GPU memory if there is no host memory."""
    sizes = []
    for factor in FACTORS:
        if capacities.host:
            scaled = capacities._replace(host=int(capacities.host * factor))
        else:
            scaled = capacities._replace(gpu=int(capacities.gpu * factor))
        sizes.append(PolicyBenchmark(device, scaled, service).run(workload, policies, progress))
    return SweepResult(workload.name, sizes)


def size_where_lru_hits(
    token_hit_rate: float,
    device: DeviceProfile,
    capacities: Capacities,
    service: SimulatedService,
    workload: Workload,
    progress: Callable[[str, int], None],
) -> Capacities:
    """Find the host memory with which LRU has this token hit rate, within half a percent.

    It makes cache sizes comparable between traces. Raises ConfigError if LRU does not reach the rate even with room for
    everything.
    """
    least, most = 0, sum(document.tokens for request in workload.requests() for document in request.documents)

    def hit_rate(host: int) -> float:
        benchmark = PolicyBenchmark(device, capacities._replace(host=host), service)
        return benchmark.simulate(workload, "LRU", progress).token_hit_rate

    best = hit_rate(most)
    if best < token_hit_rate:
        raise ConfigError(
            f"LRU's token hit rate on {workload.name} is {best:.3f} even with room for everything", param="at_lru"
        )
    while most - least > max(1000, most // 500):
        middle = (least + most) // 2
        hits = hit_rate(middle)
        if abs(hits - token_hit_rate) < 0.005:
            return capacities._replace(host=middle)
        least, most = (middle, most) if hits < token_hit_rate else (least, middle)
    return capacities._replace(host=most)


def draw(result: SweepResult, file: Path) -> None:
    """Plot token hit rates by size into a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    tokens = [size.gpu_tokens + size.host_tokens + size.disk_tokens for size in result.sizes]
    styles = {"FORESIGHT": ("tab:red", "-", 2.4), "PGDSF": ("tab:blue", "-", 1.8), "BELADY": ("black", ":", 1.6)}
    for name in result.sizes[0].policies:
        rates = [size.policies[name].token_hit_rate for size in result.sizes]
        color, line, width = styles.get(name, (None, "--", 1.1))
        axes.plot(tokens, rates, label=name, color=color, linestyle=line, linewidth=width, marker="o", markersize=3)
    axes.set_xscale("log")
    axes.set_xlabel("tokens of KV kept, all tiers")
    axes.set_ylabel("hit tokens / document tokens")
    axes.set_title(f"{result.trace}, documents in {result.sizes[0].order} order")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120, format="png")
