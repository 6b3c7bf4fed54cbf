"""``ragtree bench scheduling``: what the controller's decisions on one request take."""

from typing import Annotated

import typer
from rich.table import Table

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from services.cli.bench.options import DEFAULT_DEVICE
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results

SMALL_TREE = 3000


def scheduling(
    nodes: Annotated[int, typer.Option(min=100, help="Nodes in the large tree.")] = 300_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests to measure on each tree.")] = 20_000,
    policy: Annotated[str, typer.Option(help="The replacement policy.")] = ControllerSettings().policy,
    seed: Annotated[int, typer.Option(help="Seed of the requests.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Time of one request's decisions in a large knowledge tree, against a small one of 3,000 nodes."""
    from benchmarks.scheduling import SchedulingBenchmark

    with StepBars() as show:
        benchmark = SchedulingBenchmark(policy, DeviceProfile.shipped(DEFAULT_DEVICE), seed)
        result = benchmark.run(sorted({min(SMALL_TREE, nodes), nodes}), requests, show)
    if as_json:
        print_json(result)
        return
    table = Table("nodes", "requests", "p50", "p99", "p50 by the wall", "p99 by the wall", "evictions", "hit rate")
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
        results.print("the decisions run as plain Python: `make setup` compiles them where there is a C compiler")
    results.print(f"p99 over p50 of work that is always the same, here: {result.machine_p99_over_p50:.2f}")
