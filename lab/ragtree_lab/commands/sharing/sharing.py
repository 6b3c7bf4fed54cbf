"""``ragtree bench sharing``: KV of another machine, against computing it, and against machines that share nothing.

The machines are two Ray nodes on this one, each with an address, a folder, host memory and an engine of its own. The
engines run in processes of the nodes, as in a stack. Clients and controllers run in this process; ``asking_share``
tells what they take.

Measures the time to first token with a document in this machine's memory, in another one's and nowhere, and the
bandwidth of the read against a plain copy over TCP. These are timed in the engine's process, so that no message between
processes is in them. Then it measures the queries a second of two machines that share, and of one that answers beside a
KV generator, against two stacks behind a load balancer, and against one stack that routes queries to where their
documents are. All of them take turns on the same engines, each time from empty caches.

``--clients`` ask one query after another. With ``--rate``, queries arrive on a schedule, whatever becomes of earlier
ones. Above what a way can serve, its queue grows until the last query has come: latency is then that of an overload.

Limits: the machines share this one's processors, and their link is the loopback device. Documents are synthetic.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import SeedOption, counts, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.sharing.benchmark import SharingResult
    from ragtree_lab.sharing.throughput import Throughput

_WAYS = "alone,routed,shared,one,generator"


def sharing(
    tokens: Annotated[str, typer.Option(help="Lengths of the document, in tokens, separated by commas.")] = (
        "500,1000,2000"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each length, each with new documents.")] = 10,
    documents: Annotated[int, typer.Option(min=2, help="Documents that queries concern.")] = 60,
    document_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of them.")] = 500,
    top_k: Annotated[str, typer.Option(help="Documents per prompt, in numbers separated by commas.")] = "1",
    prepare_after_s: Annotated[
        str,
        typer.Option(
            help="Seconds that a query waits before a KV generator computes its documents, separated by commas. With "
            "each number of documents, each is a measurement. By default controller.prepare_after_s."
        ),
    ] = "",
    ways: Annotated[str, typer.Option(help="Ways to serve, separated by commas.")] = _WAYS,
    hot_share: Annotated[
        float, typer.Option(min=0.001, max=0.499, help="Share of the documents that half of the queries concern.")
    ] = 0.229,
    clients: Annotated[int, typer.Option(min=1, help="Queries at a time.")] = 4,
    rate: Annotated[
        str,
        typer.Option(help="Queries a second that arrive instead of those of --clients, separated by commas."),
    ] = "",
    queries: Annotated[
        int,
        typer.Option(min=1, help="Queries of each way in each turn. As many fill the caches before, and do not count."),
    ] = 100,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each way, each from empty caches.")] = 2,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 4,
    kv_tokens: Annotated[int, typer.Option(min=64, help="KV cache of each engine, in tokens.")] = 8192,
    host_gib: Annotated[float, typer.Option(min=0, help="Host memory of each machine for KV, in GiB.")] = 0.25,
    disk_gib: Annotated[float, typer.Option(min=0, help="Disk space of each machine for KV, in GiB.")] = 0.0,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare KV read on another machine with computing it, and machines that share with machines that do not."""
    from generator.models import ModelStore
    from ragtree_lab.commands.sharing.ray_machines import RayMachines
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.sharing.benchmark import SharingBenchmark
    from ragtree_lab.sharing.first_tokens import FirstTokenRounds
    from ragtree_lab.sharing.load import Load
    from ragtree_lab.sharing.throughput import Point, ThroughputTurns
    from ragtree_lab.sharing.ways import WAYS

    config = load_config()
    lengths = [int(length) for length in numbers(tokens, "--tokens", kv_tokens / 2)]
    waits: list[float | None] = [*numbers(prepare_after_s, "--prepare-after-s", zero=True)]
    rates: list[float | None] = [*numbers(rate, "--rate")]
    chosen = ways.split(",")
    if unknown := [way for way in chosen if way not in WAYS]:
        raise typer.BadParameter(f"there is no way {unknown[0]!r}; the ways are {_WAYS}", param_hint="--ways")
    points = [
        Point(documents_each, wait, each_s)
        for documents_each in counts(top_k, "--top-k")
        for wait in waits or [config.controller.prepare_after_s]
        for each_s in rates or [None]
    ]
    maker = ComparedEngines(config.generator, ModelStore(config.cache_dir), at_once=2, kv_tokens=kv_tokens)
    load = Load(documents, document_tokens, clients, queries, turns, answer_tokens, hot_share)
    throughput = ThroughputTurns(config.controller, config.cache_dir / "profiles", load, chosen, points)
    with StepBars() as show, RayMachines.running() as machines:
        benchmark = SharingBenchmark(
            machines, maker, FirstTokenRounds(lengths, rounds), throughput, host_gib=host_gib, disk_gib=disk_gib
        )
        result = asyncio.run(benchmark.run(seed, show))
    print_json(result) if as_json else _print(result)


def _print(result: "SharingResult") -> None:
    table = Table("document", "in this memory", "in another machine's", "computed", "read at", "of a plain copy")
    for row in result.first_tokens:
        table.add_row(
            f"{row.tokens} tokens, {row.bytes / 1e6:.0f} MB",
            *(f"{row.ttft_ms[case]:.0f} ms" for case in ("local_host", "remote", "computed")),
            f"{row.remote_bytes_per_s / 1e9:.1f} GB/s",
            f"{row.bandwidth_share_of_tcp:.0%}",
        )
    results.print(table)
    for point in result.points:
        table = Table(
            *("machines", "queries/s", "TTFT", "latency", "not computed", "read elsewhere", "generated", "asking"),
            title=_named(point),
        )
        for way, served in point.ways.items():
            table.add_row(
                way,
                f"{served.queries_per_s:.2f}",
                f"{served.mean_ttft_ms:.0f} ms",
                f"{served.mean_latency_ms:.0f} ms",
                f"{served.token_hit_rate:.0%}",
                f"{served.peer_rate:.0%}",
                f"{served.generated_rate:.0%}",
                f"{served.asking_share:.0%}",
            )
        results.print(table)
        for ratio, what in (
            (point.shared_over_alone, "as many queries with machines that share as with ones that are alone"),
            (point.shared_over_routed, "as many as with routing only"),
            (point.generator_over_alone, "as many with a KV generator as with machines that are alone"),
            (point.generator_latency, "the latency of machines that are alone, with a KV generator"),
            (point.generator_over_one, "as many with a KV generator as with one machine without"),
            (point.generator_latency_of_one, "the latency of one machine without a KV generator, with it"),
        ):
            if ratio is not None:
                results.print(f"{ratio:.2f} times {what}", highlight=False)


def _named(point: "Throughput") -> str:
    wait = "never" if point.prepare_after_s is None else f"after {point.prepare_after_s:g} s"
    asked = "" if point.rate is None else f", {point.rate:g} queries a second"
    return f"{point.top_k} documents in a prompt, prepared {wait}{asked}"
