"""``ragtree bench policies``: replacement policies against each other in a simulator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cachectl.cost import DeviceProfile
from cachectl.ordering import DocumentOrder
from cachectl.placement import Capacities
from services.cli.bench.options import DEFAULT_DATA, DEFAULT_DEVICE, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from benchmarks.policies import PoliciesResult
    from benchmarks.workload import Workload

MISTRAL_7B_KV_BYTES = 131_072


def policies(
    trace: Annotated[
        str,
        typer.Option(
            help="A trace file, ragpulse, mooncake, zipf, temporal, uniform, a question set (squad), or questions over "
            "another set's corpus (mmlu@squad)."
        ),
    ] = "zipf",
    policies: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "all",
    gpu_tokens: Annotated[int, typer.Option(min=0, help="Tokens of KV kept in each instance's GPU.")] = 50_000,
    host_tokens: Annotated[int, typer.Option(min=0, help="Tokens of KV kept in host memory.")] = 500_000,
    disk_tokens: Annotated[int, typer.Option(min=0, help="Tokens of KV kept on disk.")] = 0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Documents of each request; a trace has its own.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests to serve; a trace has its own.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.0, help="Requests a second; a trace has its own.")] = None,
    order: Annotated[DocumentOrder, typer.Option(help="How a request's documents are ordered.")] = (
        DocumentOrder.RETRIEVAL
    ),
    instances: Annotated[int, typer.Option(min=1, help="Instances of the engine.")] = 1,
    max_running: Annotated[int, typer.Option(min=1, help="Requests that an instance works on at once.")] = 4,
    window: Annotated[int, typer.Option(min=0, help="How often a waiting request may be overtaken.")] = 32,
    data: DataOption = DEFAULT_DATA,
    device: Annotated[str, typer.Option(help="A device profile: a shipped one, or a JSON file.")] = DEFAULT_DEVICE,
    kv_bytes: Annotated[int, typer.Option(min=1, help="KV bytes a token, by default Mistral-7B's.")] = (
        MISTRAL_7B_KV_BYTES
    ),
    seed: Annotated[int, typer.Option(help="Seed of whatever is drawn.")] = 0,
    paper_table2: Annotated[
        bool, typer.Option("--paper-table2", help="Policies by host memory on two workloads, as RAGCache's Table 2.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also simulate a range of cache sizes, and draw hit rates into this PNG.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Hit rates and times to first token of replacement policies, in a simulation of the shipped scheduler."""
    from benchmarks.policies import PolicyBenchmark, simulated_policies
    from benchmarks.simulator import SimulatedService
    from benchmarks.workload import open_workload

    profile = _device(device).with_kv_bytes(kv_bytes)
    names = simulated_policies() if policies == "all" else policies.split(",")
    service = SimulatedService(instances, max_running, reorder_window=window, order=order)
    with StepBars() as show:
        config = load_config()
        workload = open_workload(
            trace,
            data,
            seed,
            requests=requests,
            rate=rate,
            top_k=top_k,
            retriever=config.retriever,
            cache_dir=config.cache_dir,
            progress=show,
        )
        benchmark = PolicyBenchmark(profile, Capacities(gpu_tokens, host_tokens, disk_tokens), service)
        result = benchmark.run(workload, names, show)
    if as_json:
        print_json(result)
        return
    _print(result)


def _device(name: str) -> DeviceProfile:
    file = Path(name)
    return DeviceProfile.load(file) if file.suffix == ".json" else DeviceProfile.shipped(name)


def _print(result: "PoliciesResult") -> None:
    table = Table("policy", "hit documents", "hit tokens", "mean TTFT", "p99 TTFT", "evictions")
    for name, row in result.policies.items():
        table.add_row(
            name,
            f"{row.doc_hit_rate:.3f}",
            f"{row.token_hit_rate:.3f}",
            f"{row.mean_ttft_s:.3f} s",
            f"{row.p99_ttft_s:.3f} s",
            f"{row.evictions:,}",
        )
    results.print(table)
