"""``ragtree bench policies``: replacement policies in a simulator.

Measures hit rates and time to first token of each policy on one workload, in a simulation that runs the shipped
scheduler and tree on a virtual clock. The baselines are the other policies: LRU, and the clairvoyant BELADY.

Limits: prefill times come from a device profile, and loads are modelled. No model runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace
from rich.table import Table

from cachectl.costs.device_profile import DeviceProfile
from cachectl.scheduling.queue import WINDOW
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities
from protocol.plans import DocumentOrder
from ragtree_lab.commands.common.options import (
    DEFAULT_DATA,
    DEFAULT_DEVICE,
    DEFAULT_PART_TOKENS,
    DEFAULT_QUESTIONS,
    REPLAY_TOP_K,
    DataOption,
)
from ragtree_lab.workloads.popularity import Popularity
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.simulation.comparison import PoliciesResult
    from ragtree_lab.simulation.simulator import SimulatedService

MISTRAL_7B_KV_BYTES = 131_072
TABLE2_REQUESTS = 8000


def policies(
    trace: Annotated[
        str,
        typer.Option(
            help="A trace file; ragpulse or mooncake; zipf, temporal or uniform; a question set (squad); or questions "
            "over another set's corpus (mmlu@squad)."
        ),
    ] = "zipf",
    policies: Annotated[str, typer.Option(help="Policies, separated by commas, or all.")] = "all",
    gpu_tokens: Annotated[int, typer.Option(min=0, help="KV tokens in each instance's GPU.")] = 40_960,
    host_tokens: Annotated[int, typer.Option(min=0, help="KV tokens in host memory.")] = 524_288,
    at_lru: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Choose --host-tokens so that LRU has this token hit rate."),
    ] = None,
    disk_tokens: Annotated[int, typer.Option(min=0, help="KV tokens on disk.")] = 0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Documents per request; by default the trace's own.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests to serve; by default the trace's own.")] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.0, help="Requests per second; by default the trace's own.")
    ] = None,
    popularity: Annotated[
        Popularity | None,
        typer.Option(
            help="Ask the questions of the set in --trace as `replay` does, each once: documents or own. By default "
            "they repeat."
        ),
    ] = None,
    order: Annotated[DocumentOrder, typer.Option(help="Order of a request's documents.")] = (DocumentOrder.RETRIEVAL),
    recompute_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Also use KV that documents have elsewhere, with this share of it computed again. By default only "
            "exact prefixes are used.",
        ),
    ] = None,
    load_ahead_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="After so many seconds in the queue, load what a request needs of slower tiers while others are "
            "prefilled. By default its own prefill loads it.",
        ),
    ] = None,
    instances: Annotated[int, typer.Option(min=1, help="Instances of the engine.")] = 1,
    max_running: Annotated[int, typer.Option(min=1, help="Requests that an instance runs at once.")] = 4,
    window: Annotated[int, typer.Option(min=0, help="How often a queued request may be overtaken.")] = WINDOW,
    data: DataOption = DEFAULT_DATA,
    device: Annotated[
        str, typer.Option(help="Device profile: the name of a shipped one, or a JSON file.")
    ] = DEFAULT_DEVICE,
    kv_bytes: Annotated[
        int | None,
        typer.Option(
            min=1, help="KV bytes per token; by default those in the JSON file, or Mistral-7B's with a shipped profile."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    paper_table2: Annotated[
        bool,
        typer.Option("--paper-table2", help="Run RAGCache's Table 2 instead: the paper's policies by host memory."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Simulate six cache sizes around the given one, and plot hit rates into this PNG."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare hit rates and time to first token of replacement policies, in a simulation of the shipped scheduler."""
    from ragtree_lab.commands.common.prompts import stream_workload
    from ragtree_lab.simulation.comparison import PolicyBenchmark
    from ragtree_lab.simulation.policies import simulated_policies
    from ragtree_lab.simulation.simulator import SimulatedService
    from ragtree_lab.simulation.sweep import draw, size_where_lru_hits, sweep
    from ragtree_lab.workloads.by_name import open_workload

    profile = _device(device, kv_bytes)
    service = SimulatedService(
        instances,
        max_running,
        reorder_window=window,
        order=order,
        recompute_share=recompute_share,
        load_ahead_s=load_ahead_s,
    )
    if paper_table2:
        _table2(profile, service, requests or TABLE2_REQUESTS, seed, as_json)
        return
    names = simulated_policies() if policies == "all" else policies.split(",")
    capacities = Capacities(gpu_tokens, host_tokens, disk_tokens)
    with StepBars() as bars:
        config = load_config()
        if popularity is None:
            workload = open_workload(
                trace,
                data,
                seed,
                requests=requests,
                rate=rate,
                top_k=top_k,
                retriever=config.retriever,
                cache_dir=config.cache_dir,
                progress=bars,
            )
        else:
            workload = stream_workload(
                config,
                data,
                trace,
                popularity,
                questions=DEFAULT_QUESTIONS,
                part_tokens=DEFAULT_PART_TOKENS,
                top_k=REPLAY_TOP_K if top_k is None else top_k,
                count=requests,
                rate=1.0 if rate is None else rate,
                seed=seed,
                progress=bars,
            )
        total = workload.length
        done: dict[str, int] = {}

        def served(policy: str, count: int) -> None:
            before = done.get(policy, 0)
            # A finished step starts again.
            done[policy] = count if before == total else before + count
            bars(policy, done[policy], total)

        if at_lru is not None:
            capacities = size_where_lru_hits(at_lru, profile, capacities, service, workload, served)
        if plot is None:
            result = PolicyBenchmark(profile, capacities, service).run(workload, names, served)
        else:
            swept = sweep(profile, capacities, service, workload, names, served)
            draw(swept, plot)
    if plot is None:
        print_json(result) if as_json else _print(result)
        return
    if as_json:
        print_json(swept)
        return
    for size in swept.sizes:
        _print(size)
    results.print(f"plotted into {plot}", highlight=False)


def _device(name: str, kv_bytes: int | None) -> DeviceProfile:
    file = Path(name)
    if file.suffix == ".json":
        profile = DeviceProfile.load(file)
        return profile if kv_bytes is None else replace(profile, kv_bytes_per_token=kv_bytes)
    return replace(DeviceProfile.shipped(name), kv_bytes_per_token=kv_bytes or MISTRAL_7B_KV_BYTES)


def _table2(device: DeviceProfile, service: "SimulatedService", requests: int, seed: int, as_json: bool) -> None:
    from ragtree_lab.simulation.policies.belady import Belady
    from ragtree_lab.simulation.table2 import HOST_GIB, Table2

    with StepBars() as bars:
        result = Table2(device, service, requests, seed).run([ControllerSettings().policy, Belady.name], bars)
    if as_json:
        print_json(result)
        return
    for name, rows in result.workloads.items():
        table = Table("policy", *(f"{gib} GiB" for gib in HOST_GIB), title=f"{name}: hit rate (mean TTFT)")
        for policy, cells in rows.items():
            table.add_row(policy, *(f"{cell.doc_hit_rate:.3f} ({cell.mean_ttft_s:.2f} s)" for cell in cells.values()))
        results.print(table)
    compared = Table("PGDSF's hit rate over", "here", "published")
    for policy, ratio in result.pgdsf_over.items():
        compared.add_row(
            policy,
            f"{ratio.least:.2f}-{ratio.most:.2f}",
            f"{ratio.published_least:.2f}-{ratio.published_most:.2f}",
        )
    results.print(compared)
    results.print(
        f"PGDSF has the best hit rate of the paper's policies in {result.pgdsf_first} of {result.columns} columns",
        highlight=False,
    )


def _print(result: "PoliciesResult") -> None:
    table = Table(
        "policy",
        "hit documents",
        "hit tokens",
        "mean TTFT",
        "p99 TTFT",
        "evictions",
        title=f"{result.trace}: {result.gpu_tokens:,} tokens in GPU, {result.host_tokens:,} in host memory",
    )
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
