"""``ragtree bench reorder``: the gain of the cache-aware queue under overload.

Measures mean and p99 TTFT a little above the sustainable rate. The baseline is the same stack, first come, first
served.

Limits: real engine and questions, but popularity is drawn with the paper's skew (RAGCache, section 7.3). Without a
queue there is nothing to reorder, so it says nothing about low load.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from cachectl.scheduling.queue import WINDOW
from ragtree_lab.commands.common.options import (
    DEFAULT_DATA,
    DEFAULT_PART_TOKENS,
    DEFAULT_QUESTIONS,
    DataOption,
    KvTokensOption,
    PartTokensOption,
    PopularityOption,
    QuestionsOption,
    SeedOption,
    TopKOption,
    WorkloadOption,
    numbers,
)
from ragtree_lab.workloads.popularity import Popularity
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def reorder(
    workload: WorkloadOption = "squad",
    window: Annotated[int, typer.Option(min=1, help="How often a queued request may be overtaken.")] = WINDOW,
    loads: Annotated[str, typer.Option(help="Arrival rates, as multiples of the sustainable rate.")] = "1.1,1.2,1.3",
    requests: Annotated[int, typer.Option(min=2, help="Requests per rate and queue order.")] = 240,
    warm_up: Annotated[int, typer.Option(min=1, help="Requests that fill the caches before measuring.")] = 80,
    saturating: Annotated[
        int, typer.Option(min=2, help="Requests sent all at once to find the sustainable rate.")
    ] = 60,
    kv_tokens: KvTokensOption = 23_296,
    host_gib: Annotated[
        float, typer.Option(min=0, help="Host memory for KV of each stack, in GiB. There is no disk tier.")
    ] = 1.0,
    popularity: PopularityOption = Popularity.DOCUMENTS,
    questions: QuestionsOption = DEFAULT_QUESTIONS,
    part_tokens: PartTokensOption = DEFAULT_PART_TOKENS,
    top_k: TopKOption = 2,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare mean TTFT a little above the sustainable rate: first come, first served, and cache-aware reordering."""
    from generator.models import ModelStore
    from ragtree_lab.commands.common.prompts import prompt_stream, retrieved_prompts
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.systems import Systems
    from ragtree_lab.reorder import ReorderBenchmark, ReorderSettings

    config = load_config()
    engines = ComparedEngines(config.generator, ModelStore(config.cache_dir), at_once=2, kv_tokens=kv_tokens)
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
    rates = tuple(numbers(loads, "--loads"))
    settings = ReorderSettings(warm_up, saturating, requests, rates, window, seed)
    count = warm_up + saturating + len(rates) * requests
    with StepBars() as show:
        prompts = retrieved_prompts(
            config,
            data,
            workload,
            questions,
            part_tokens,
            top_k,
            seed,
            show,
            popular_first=popularity is Popularity.DOCUMENTS,
        )
        benchmark = ReorderBenchmark(first_come, reordering, settings)
        result = asyncio.run(benchmark.run(prompt_stream(prompts, popularity, count, seed), show))
    if as_json:
        print_json(result)
        return
    table = Table("load", "rate", "mean TTFT: FCFS", "reordered", "times lower", "p99: FCFS", "reordered")
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
        f"sustainable: {result.sustainable_per_s:.2f}/s; mean TTFT {result.ttft_ratio:.2f} x lower with reordering; no "
        f"request was overtaken more than {result.largest_overtake} times ({result.window} allowed)",
        highlight=False,
    )
