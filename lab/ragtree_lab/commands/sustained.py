"""``ragtree bench sustained``: whether reuse lasts when every prompt is new.

Measures the speed-up over consecutive stretches of prompts whose pairs of documents are all new, over more documents
than the cache holds. The baselines are plain vLLM without reuse and vLLM with its own prefix cache, with the same flags
and KV cache size. All systems answer at full speed, in turns of a few prompts.

Limits: one request at a time, two documents per prompt. Of exact KV, only the first document can be reused.
"""

import asyncio
from itertools import islice
from typing import Annotated

import typer
from rich.table import Table

from protocol.plans import Reuse
from ragtree_lab.commands.common.gate_first import gate_of
from ragtree_lab.commands.common.options import (
    DEFAULT_AGAINST,
    DEFAULT_DATA,
    AgainstOption,
    DataOption,
    PartTokensOption,
    ReuseOption,
    SeedOption,
    WorkloadOption,
)
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def sustained(
    workload: WorkloadOption = "squad",
    against: AgainstOption = DEFAULT_AGAINST,
    pairs: Annotated[int, typer.Option(min=2, help="Prompts, each with a new pair of documents.")] = 300,
    stretch: Annotated[int, typer.Option(min=1, help="Prompts per stretch. An incomplete last one is left out.")] = 100,
    warm_up: Annotated[int, typer.Option(min=0, help="Warm-up prompts of the same kind.")] = 100,
    seconds: Annotated[
        int | None,
        typer.Option(min=2, help="Documents that second ones are drawn from; by default all, most of them new."),
    ] = None,
    host_gib: Annotated[float, typer.Option(min=0, help="Host memory for KV, in GiB.")] = 0.25,
    disk_gib: Annotated[float, typer.Option(min=0, help="Disk space for KV, in GiB.")] = 0.75,
    questions: Annotated[int, typer.Option(min=1, help="Questions to retrieve first documents for.")] = 500,
    part_tokens: PartTokensOption = 500,
    reuse: ReuseOption = Reuse.EXACT,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Measure the speed-up over vLLM, stretch by stretch, with new pairs of documents that exceed the cache."""
    from cachectl.runtime.composing import GateFolder
    from generator.models import ModelStore
    from ragtree_lab.commands.common.prompts import retrieved_prompts
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.systems import OURS, Systems
    from ragtree_lab.sustained import SustainedBenchmark

    config = load_config()
    baselines = [name.strip() for name in against.split(",")]
    systems = Systems(
        ComparedEngines(
            config.generator, ModelStore(config.cache_dir), at_once=len(baselines) + (1 if reuse is Reuse.EXACT else 2)
        ),
        config.controller,
        config.cache_dir / "profiles",
        GateFolder(config.cache_dir),
        host_gib=host_gib,
        disk_gib=disk_gib,
    )
    benchmark = SustainedBenchmark(systems, baselines, stretch, reuse)
    with StepBars() as show:
        if reuse is Reuse.AUTO:
            gate_of(config, data, workload, seed, show)
        drawn = retrieved_prompts(config, data, workload, questions, part_tokens, 2, seed, show)
        prompts = drawn.draw_novel_pairs(warm_up + pairs, seed, seconds)
        warming = list(islice(prompts, warm_up))
        result = asyncio.run(benchmark.run(warming, list(prompts), show))
    if as_json:
        print_json(result)
        return
    table = Table("prompts", "system", "mean TTFT", "served", "our speed-up", "tokens cached")
    for number, row in enumerate(result.stretches):
        begin = number * row.prompts
        table.add_row(
            f"{begin + 1} to {begin + row.prompts}",
            OURS,
            f"{row.mean_ttft_ms:.0f} ms",
            f"{row.served_per_s[OURS]:.3g}/s",
            "",
            f"{row.token_hit_rate:.0%}",
        )
        for name, mean_ttft_ms in row.baseline_mean_ttft_ms.items():
            served = f"{row.served_per_s[name]:.3g}/s"
            table.add_row("", name, f"{mean_ttft_ms:.0f} ms", served, f"{row.speedup[name]:.2f}", "")
    results.print(table)
    for name, ratio in result.last_over_first.items():
        results.print(f"against {name}: last speed-up over first {ratio:.2f}", highlight=False)
    results.print(f"{result.document_tokens:,} tokens of documents, room for {result.memory_tokens:,}", highlight=False)
