"""``ragtree bench sharing``: KV of another machine, against computing it, and against machines that share nothing.

Measures the time to first token with a document in this machine's memory, in another one's and nowhere, and the
bandwidth of the read against a plain copy over TCP. Then it measures the queries a second of two machines that share,
and of one that answers beside a KV generator, against two stacks behind a load balancer, and against one stack that
routes queries to where their documents are. All of them take turns. With as many ``--clients`` as ``--queries``, all
queries arrive at once: that is the overload in which Shared RAG-DCache measures latency.

Limits: the machines are engines on this one, with memory and disks of their own, and their link is the loopback device.
They share its processors. Documents are synthetic.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from services.cli.bench.common.options import SeedOption, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def sharing(
    tokens: Annotated[str, typer.Option(help="Lengths of the document, in tokens, separated by commas.")] = (
        "500,1000,2000"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each length, each with new documents.")] = 10,
    documents: Annotated[int, typer.Option(min=2, help="Documents that queries concern.")] = 60,
    document_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of them.")] = 500,
    top_k: Annotated[int, typer.Option(min=1, help="Documents per prompt.")] = 1,
    hot_share: Annotated[
        float, typer.Option(min=0.001, max=0.499, help="Share of the documents that half of the queries concern.")
    ] = 0.229,
    clients: Annotated[int, typer.Option(min=1, help="Queries at a time.")] = 4,
    queries: Annotated[int, typer.Option(min=1, help="Queries of each way to serve them, in each turn.")] = 100,
    turns: Annotated[int, typer.Option(min=2, help="Turns. The first one fills the caches, and is not counted.")] = 4,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 4,
    kv_tokens: Annotated[int, typer.Option(min=64, help="KV cache of each engine, in tokens.")] = 8192,
    host_gib: Annotated[float, typer.Option(min=0, help="Host memory of each machine for KV, in GiB.")] = 0.25,
    disk_gib: Annotated[float, typer.Option(min=0, help="Disk space of each machine for KV, in GiB.")] = 0.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare KV read on another machine with computing it, and machines that share with machines that do not."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.sharing.benchmark import SharingBenchmark
    from benchmarks.sharing.first_tokens import FirstTokenRounds
    from benchmarks.sharing.throughput import Load, ThroughputTurns
    from generator.models import ModelStore

    config = load_config()
    lengths = [int(length) for length in numbers(tokens, "--tokens", kv_tokens / 2)]
    load = Load(documents, document_tokens, top_k, clients, queries, turns, answer_tokens, hot_share)
    models = ModelStore(config.cache_dir)
    benchmark = SharingBenchmark(
        FirstTokenRounds(EngineMaker(config.generator, models, at_once=2, kv_tokens=kv_tokens), lengths, rounds),
        ThroughputTurns(
            EngineMaker(config.generator, models, at_once=9, kv_tokens=kv_tokens),
            config.controller,
            config.cache_dir / "profiles",
            load,
            host_gib=host_gib,
            disk_gib=disk_gib,
        ),
    )
    with StepBars() as show:
        result = asyncio.run(benchmark.run(seed, show))
    if as_json:
        print_json(result)
        return
    table = Table("document", "in this memory", "in another machine's", "computed", "read at", "of a plain copy")
    for row in result.first_tokens:
        table.add_row(
            f"{row.tokens} tokens, {row.bytes / 1e6:.0f} MB",
            *(f"{row.ttft_ms[case]:.0f} ms" for case in ("local_host", "remote", "computed")),
            f"{row.remote_bytes_per_s / 1e9:.1f} GB/s",
            f"{row.bandwidth_share_of_tcp:.0%}",
        )
    results.print(table)
    table = Table(
        "machines", "queries/s", "mean TTFT", "mean latency", "tokens not computed", "read on the other", "generated"
    )
    for way, served in result.ways.items():
        table.add_row(
            way,
            f"{served.queries_per_s:.2f}",
            f"{served.mean_ttft_ms:.0f} ms",
            f"{served.mean_latency_ms:.0f} ms",
            f"{served.token_hit_rate:.0%}",
            f"{served.peer_rate:.0%}",
            f"{served.generated_rate:.0%}",
        )
    results.print(table)
    results.print(
        f"machines that share serve {result.shared_over_alone:.2f} times as many queries as ones that are "
        f"alone, and {result.shared_over_routed:.2f} times as many as with routing only; with a KV generator "
        f"{result.generator_over_alone:.2f} times as many as alone, at {result.generator_latency:.0%} of the latency; "
        f"one machine with a KV generator serves {result.generator_over_one:.2f} times as many as without, at "
        f"{result.generator_latency_of_one:.0%} of the latency",
        highlight=False,
    )
