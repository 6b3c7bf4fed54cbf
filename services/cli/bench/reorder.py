"""``ragtree bench reorder``: the cache-aware queue against first come, first served, under overload."""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.workloads.popularity import Popularity
from services.cli.bench.options import (
    DEFAULT_DATA,
    DataOption,
    KvTokensOption,
    PartTokensOption,
    QuestionsOption,
    SeedOption,
    TopKOption,
    WorkloadOption,
    numbers,
)
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def reorder(
    workload: WorkloadOption = "squad",
    window: Annotated[int, typer.Option(min=1, help="How often a waiting request may be overtaken.")] = 32,
    loads: Annotated[str, typer.Option(help="Rates of arrival, in multiples of the sustainable one.")] = "1.1,1.2,1.3",
    requests: Annotated[int, typer.Option(min=2, help="Requests at each rate, in each order.")] = 240,
    warm_up: Annotated[int, typer.Option(min=1, help="Requests that fill the caches first.")] = 80,
    saturating: Annotated[
        int, typer.Option(min=2, help="Requests that come all at once, to find the sustainable rate.")
    ] = 60,
    kv_tokens: KvTokensOption = 23_296,
    host_gib: Annotated[float, typer.Option(min=0, help="Host memory of each stack for KV, in GiB; no disk.")] = 1.0,
    questions: QuestionsOption = 300,
    part_tokens: PartTokensOption = 1000,
    top_k: TopKOption = 2,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Mean TTFT a little above the sustainable rate, requests served as they come and reordered by what is cached."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.measuring.systems import Systems
    from benchmarks.reorder import ReorderBenchmark, ReorderSettings
    from generator.models import ModelStore
    from services.cli.bench.prompts import retrieved_prompts

    config = load_config()
    engines = EngineMaker(config.generator, ModelStore(config.cache_dir), at_once=2, kv_tokens=kv_tokens)
    first_come, reordering = (
        Systems(
            engines,
            config.controller.model_copy(update={"reorder_window": width, "max_queued": max(requests, saturating)}),
            config.cache_dir / "profiles",
            host_gib=host_gib,
            disk_gib=0.0,
        )
        for width in (0, window)
    )
    settings = ReorderSettings(warm_up, saturating, requests, tuple(numbers(loads, "--loads")), window, seed)
    with StepBars() as show:
        drawn = retrieved_prompts(config, data, workload, questions, part_tokens, top_k, seed, show)
        benchmark = ReorderBenchmark(first_come, reordering, settings)
        result = asyncio.run(benchmark.run(list(drawn.all()), drawn.draw(Popularity.PAPER, seed), show))
    if as_json:
        print_json(result)
        return
    table = Table(
        "load", "rate", "mean TTFT: as they come", "reordered", "times lower", "p99: as they come", "reordered"
    )
    for row in result.rows:
        before, after = row.first_come, row.reordered
        table.add_row(
            f"{row.load:g}",
            f"{before.rate:.2g}/s",
            f"{before.mean_ttft_ms:.0f} ms",
            f"{after.mean_ttft_ms:.0f} ms",
            f"{row.ttft_ratio:.2f}",
            f"{before.p99_ttft_ms:.0f} ms",
            f"{after.p99_ttft_ms:.0f} ms",
        )
    results.print(table)
    results.print(
        f"sustainable: {result.sustainable_per_s:.2f}/s; mean TTFT {result.ttft_ratio:.2f} x lower reordered; nobody "
        f"was overtaken more than {result.largest_overtake} times, of {result.window} allowed",
        highlight=False,
    )
