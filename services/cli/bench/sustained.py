"""``ragtree bench sustained``: whether reuse lasts when every prompt is new.

Measures the speed-up over consecutive stretches of prompts whose pairs of documents are all new, over more documents
than the cache holds. The baseline is plain vLLM without reuse, prompt by prompt.

Limits: one request at a time, two documents per prompt. Only the first document can be reused.
"""

import asyncio
from itertools import islice
from typing import Annotated

import typer
from rich.table import Table

from services.cli.bench.options import DEFAULT_DATA, DataOption, PartTokensOption, SeedOption, WorkloadOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def sustained(
    workload: WorkloadOption = "squad",
    pairs: Annotated[int, typer.Option(min=2, help="Prompts, each with a new pair of documents.")] = 300,
    stretch: Annotated[int, typer.Option(min=1, help="Prompts per stretch; each stretch has one speed-up.")] = 100,
    warm_up: Annotated[int, typer.Option(min=0, help="Warm-up prompts of the same kind.")] = 100,
    host_gib: Annotated[float, typer.Option(min=0, help="Host memory for KV, in GiB.")] = 0.25,
    disk_gib: Annotated[float, typer.Option(min=0, help="Disk space for KV, in GiB.")] = 0.75,
    questions: Annotated[int, typer.Option(min=1, help="Questions to retrieve first documents for.")] = 500,
    part_tokens: PartTokensOption = 500,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Measure the speed-up over plain vLLM, stretch by stretch, with new pairs of documents that exceed the cache."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.measuring.systems import Systems
    from benchmarks.sustained import SustainedBenchmark
    from generator.models import ModelStore
    from services.cli.bench.prompts import retrieved_prompts

    config = load_config()
    systems = Systems(
        EngineMaker(config.generator, ModelStore(config.cache_dir), at_once=2),
        config.controller,
        config.cache_dir / "profiles",
        host_gib=host_gib,
        disk_gib=disk_gib,
    )
    with StepBars() as show:
        drawn = retrieved_prompts(config, data, workload, questions, part_tokens, 2, seed, show)
        prompts = drawn.draw_novel_pairs(warm_up + pairs, seed)
        warming = list(islice(prompts, warm_up))
        result = asyncio.run(SustainedBenchmark(systems, stretch).run(warming, list(prompts), show))
    if as_json:
        print_json(result)
        return
    table = Table("prompts", "plain vLLM", "RAGTree", "speed-up", "tokens cached")
    for number, row in enumerate(result.stretches):
        table.add_row(
            f"{number * stretch + 1} to {number * stretch + row.prompts}",
            f"{row.baseline_mean_ttft_ms:.0f} ms",
            f"{row.mean_ttft_ms:.0f} ms",
            f"{row.speedup:.2f}",
            f"{row.token_hit_rate:.0%}",
        )
    results.print(table)
    results.print(
        f"last speed-up over first: {result.last_over_first:.2f}; {result.document_tokens:,} tokens of documents, room "
        f"for {result.memory_tokens:,}",
        highlight=False,
    )
