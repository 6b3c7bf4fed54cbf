"""``ragtree bench controller``: how far the controller carries, with more instances, machines and documents.

Measures the decisions a second of one controller and of several that share the requests, by the number of instances.
Then it measures the memory that the controller takes for each node and each machine that holds it, and whether
decisions take longer as the directory grows. All nodes are really registered, on a full disk, so new ones evict. It
simulates how many bytes machines read of each other, and what that does for the hit rate, and how late first tokens
come if several controllers do not see each other's load. Documents are drawn by Zipf's law.

Limits: it is a simulation. Scheduler and tree are the ones that serve, but engines, links and requests are modelled, by
a device profile. There are no messages between processes. Shards run one after another, because they share nothing;
only as many as there are processors also run at once.
"""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from rich.table import Table

from cachectl.costs.device_profile import DeviceProfile
from cachectl.settings import ControllerSettings
from ragtree_lab.commands.common.options import DEFAULT_DEVICE, SeedOption, counts, numbers
from ragtree_lab.commands.policies import MISTRAL_7B_KV_BYTES
from services.cli.connection import JsonOption
from services.cli.output import StepBars, errors, print_json, results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ragtree_lab.controller.benchmark import ControllerResult
    from ragtree_lab.controller.decisions import DecisionRow
    from ragtree_lab.controller.directory import DirectoryResult
    from ragtree_lab.controller.growth import GrowthRow
    from ragtree_lab.controller.network import NetworkRow

_MAX_RUNNING = 4
_GIGABIT = 1e9 / 8


def controller(
    instances: Annotated[str, typer.Option(help="Instances of the generator, in numbers separated by commas.")] = (
        "10,100,1000"
    ),
    shards: Annotated[str, typer.Option(help="Controllers that share the requests, in numbers.")] = "1,2,4",
    requests: Annotated[
        int, typer.Option(min=1, help="Requests to decide on with the most instances; with fewer up to ten times more.")
    ] = 500,
    decide_gbit: Annotated[
        float,
        typer.Option(min=0, help="Links between the instances' machines while decisions are measured; 0: no links."),
    ] = 0.0,
    nodes: Annotated[
        int,
        typer.Option(
            min=1, max=10_000_000, help="Nodes of the directory on disks; a tenth as many are in host memory."
        ),
    ] = 100_000,
    holders: Annotated[str, typer.Option(help="Machines that hold each of these nodes, in numbers.")] = "1,4,10",
    tree_nodes: Annotated[
        str,
        typer.Option(help="Nodes on a full disk while decisions are timed, in numbers. 10 million take about 9 GiB."),
    ] = "100000,1000000",
    tree_requests: Annotated[int, typer.Option(min=1, help="Requests to time with each of these.")] = 5000,
    machines: Annotated[
        str,
        typer.Option(
            help="Machines to simulate, in numbers. With 1,000, each row of the network's table takes some minutes."
        ),
    ] = "10,100",
    links: Annotated[str, typer.Option(help="Links between them, in Gbit/s.")] = "10,25",
    machine_requests: Annotated[int, typer.Option(min=1, help="Requests to simulate for each machine.")] = 100,
    rate: Annotated[float, typer.Option(min=0.001, help="Requests a second for each machine.")] = 1.5,
    documents: Annotated[int, typer.Option(min=6, help="Documents that requests are drawn from.")] = 10_000_000,
    document_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of them.")] = 512,
    gpu_tokens: Annotated[int, typer.Option(min=0, help="KV tokens in each instance's GPU.")] = 32_768,
    host_tokens: Annotated[int, typer.Option(min=0, help="KV tokens in each machine's host memory.")] = 131_072,
    kv_bytes: Annotated[int, typer.Option(min=1, help="KV bytes per token.")] = MISTRAL_7B_KV_BYTES,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure how far the controller carries: decisions a second, memory of the directory, bytes over the network."""
    from ragtree_lab.controller.benchmark import ControllerBenchmark, Sizes
    from ragtree_lab.controller.decisions import DecisionBenchmark
    from ragtree_lab.controller.directory import DirectoryBenchmark
    from ragtree_lab.controller.growth import GrowthBenchmark
    from ragtree_lab.controller.machines import Machines
    from ragtree_lab.controller.network import NetworkBenchmark, NetworkLoad
    from ragtree_lab.controller.popular_documents import Documents

    sizes = Sizes(
        counts(instances, "--instances"),
        counts(shards, "--shards"),
        sorted(counts(holders, "--holders")),
        counts(machines, "--machines"),
        numbers(links, "--links"),
    )
    device = replace(DeviceProfile.shipped(DEFAULT_DEVICE), kv_bytes_per_token=kv_bytes)
    settings = ControllerSettings(max_running=_MAX_RUNNING)
    asked = Documents(documents, document_tokens)
    link = decide_gbit * _GIGABIT or None

    def known(count: int) -> Machines:
        # Free pages take memory on each machine, and no decision looks at them.
        return Machines(count, gpu_tokens, min(gpu_tokens, host_tokens), link_bytes_per_s=link)

    benchmark = ControllerBenchmark(
        DecisionBenchmark(known, device, settings, asked, requests),
        DirectoryBenchmark(device, settings, nodes, document_tokens),
        GrowthBenchmark(
            device, settings, counts(tree_nodes, "--tree-nodes"), document_tokens, gpu_tokens, tree_requests
        ),
        NetworkBenchmark(device, settings, NetworkLoad(asked, machine_requests, rate), gpu_tokens, host_tokens),
        sizes,
    )
    needed = benchmark.needed_bytes()
    errors.print(f"The directory takes about {needed / 2**30:.2f} GiB of memory.", highlight=False)
    with StepBars() as show:
        result = benchmark.run(seed, show)
    print_json(result) if as_json else _print(result)


def _print(result: "ControllerResult") -> None:
    results.print(_decisions(result.decisions))
    for instances, speedup in result.shards_speedup.items():
        ratios = [f"{shards} shards decide {ratio:.2f} times as fast" for shards, ratio in speedup.simulated.items()]
        ratios += [f"{shards} in processes {ratio:.2f} times" for shards, ratio in speedup.processes.items()]
        if ratios:
            results.print(f"{instances} instances: {', '.join(ratios)} as one", highlight=False)
    results.print(_directory(result.directory))
    for tier, node_bytes in result.directory.node_bytes.items():
        further = result.directory.machine_bytes.get(tier)
        added = "" if further is None else f", and each further machine adds {further:,.0f} bytes"
        results.print(f"{tier}: a node takes {node_bytes:,.0f} bytes on the first{added}", highlight=False)
    results.print(_growth(result.growth))
    for row in result.growth:
        results.print(
            f"{row.nodes:,} nodes: an index grew within {row.slowest_registration_ms:,.0f} ms, and all garbage was "
            f"collected within {row.collection_s:.1f} s",
            highlight=False,
        )
    results.print(_network(result.network))
    if not result.compiled:
        results.print("cachectl is not compiled; `make setup` compiles it if there is a C compiler")


def _decisions(rows: "Sequence[DecisionRow]") -> Table:
    table = Table("instances", "shards", "requests", "decided, simulated", "in processes", "largest share", "found")
    for row in rows:
        at_once = row.by_processes_per_s
        table.add_row(
            f"{row.instances:,}",
            f"{row.shards}",
            f"{row.requests:,}",
            f"{row.decisions_per_s:,.0f}/s",
            "" if at_once is None else f"{at_once:,.0f}/s",
            f"{row.largest_share:.0%}",
            f"{row.found_rate:.1%}",
        )
    return table


def _directory(result: "DirectoryResult") -> Table:
    table = Table("tier", "machines", "nodes", "bytes per node and machine")
    for row in result.rows:
        table.add_row(row.tier, f"{row.machines}", f"{row.nodes:,}", f"{row.bytes_per_node_and_machine:,.0f}")
    return table


def _growth(rows: "Sequence[GrowthRow]") -> Table:
    table = Table("nodes", "bytes each", "lookup", "known paths", "p99", "new paths", "p99", "evicted")
    for row in rows:
        table.add_row(
            f"{row.nodes:,}",
            f"{row.bytes_per_node:,.0f}",
            f"{row.lookup_us:.1f} µs",
            f"{row.known.per_s:,.0f}/s",
            f"{row.known.p99_us:,.0f} µs",
            f"{row.new.per_s:,.0f}/s",
            f"{row.new.p99_us:,.0f} µs",
            f"{row.new.evictions:.1f}",
        )
    return table


def _network(rows: "Sequence[NetworkRow]") -> Table:
    table = Table("machines", "way", "shards", "not computed", "read elsewhere", "network", "TTFT, mean", "p99", "late")
    for row in rows:
        table.add_row(
            f"{row.machines}",
            row.way + (f", {row.link_gbit_per_s:g} Gbit/s" if row.link_gbit_per_s else ""),
            f"{row.shards}",
            f"{row.token_hit_rate:.1%}",
            f"{row.peer_rate:.1%}",
            f"{row.network_bytes_per_s / 1e9:.2f} GB/s",
            f"{1000 * row.mean_ttft_s:.0f} ms",
            f"{1000 * row.p99_ttft_s:.0f} ms",
            f"{row.failed_reads}",
        )
    return table
