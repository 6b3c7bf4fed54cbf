"""``ragtree bench scheduling``: the time of the controller's decisions.

Measures the processor time of all decisions on one request, over a large knowledge tree. The baseline is a tree of
3,000 nodes: the time should not grow with the tree.

Limits: no model and no messages between processes. ``machine_p99_over_p50`` shows the machine's own noise.
"""

from typing import Annotated

import typer
from rich.table import Table

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from ragtree_lab.commands.common.options import DEFAULT_DEVICE
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results

SMALL_TREE = 3000


def scheduling(
    nodes: Annotated[int, typer.Option(min=100, help="Nodes of the large tree.")] = 300_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests to measure per tree.")] = 20_000,
    policy: Annotated[str, typer.Option(help="Replacement policy.")] = ControllerSettings().policy,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare the time of one request's decisions over a large knowledge tree with a small one of 3,000 nodes."""
    from ragtree_lab.scheduling import SchedulingBenchmark

    with StepBars() as show:
        benchmark = SchedulingBenchmark(policy, DeviceProfile.shipped(DEFAULT_DEVICE), seed)
        result = benchmark.run(sorted({min(SMALL_TREE, nodes), nodes}), requests, show)
    if as_json:
        print_json(result)
        return
    table = Table("nodes", "requests", "p50", "p99", "p50 wall clock", "p99 wall clock", "evictions", "hit rate")
    for row in result.by_nodes.values():
        table.add_row(
            f"{row.nodes:,}",
            f"{row.requests:,}",
            f"{row.p50_us:.0f} µs",
            f"{row.p99_us:.0f} µs",
            f"{row.wall_p50_us:.0f} µs",
            f"{row.wall_p99_us:.0f} µs",
            f"{row.evictions:,}",
            f"{row.hit_rate:.2f}",
        )
    results.print(table)
    if not result.compiled:
        results.print("cachectl is not compiled; `make setup` compiles it if there is a C compiler")
    results.print(f"p99 over p50 of constant work on this machine: {result.machine_p99_over_p50:.2f}")
