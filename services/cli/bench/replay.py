"""``ragtree bench replay``: the stack against plain vLLM under load.

Measures TTFT and sustainable throughput under Poisson arrivals, with real questions and real retrieval. The baselines
are plain vLLM without reuse and vLLM with its own prefix cache, with the same flags and KV cache size.

Limits: the parts run in one process, without HTTP. Popularity is drawn with the paper's skew unless ``--popularity
own`` is given. Ratios depend on the model, the document lengths and the cache sizes.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.workloads.popularity import Popularity
from services.cli.bench.options import (
    DEFAULT_AGAINST,
    DEFAULT_DATA,
    AgainstOption,
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


def replay(
    workload: WorkloadOption = "squad",
    against: AgainstOption = DEFAULT_AGAINST,
    popularity: Annotated[
        Popularity,
        typer.Option(help="paper: the top 3 % of documents get 60 % of requests; own: as in the question set."),
    ] = Popularity.PAPER,
    rates: Annotated[
        str,
        typer.Option(help="Requests per second to sweep, lowest first; by default derived from the machine's speed."),
    ] = "",
    requests: Annotated[
        int, typer.Option(min=2, help="Requests per system at the first rate. Other rates run for the same time.")
    ] = 16,
    warm_up: Annotated[int, typer.Option(min=0, help="Warm-up requests after one pass over all prompts.")] = 200,
    kv_tokens: KvTokensOption = 23_296,
    questions: QuestionsOption = 300,
    part_tokens: PartTokensOption = 1000,
    top_k: TopKOption = 2,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare TTFT and throughput with vLLM without reuse, and with its own prefix cache, under Poisson arrivals."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.measuring.systems import OURS, Systems
    from benchmarks.replay import ReplayBenchmark, ReplaySettings
    from generator.models import ModelStore
    from services.cli.bench.prompts import retrieved_prompts

    config = load_config()
    baselines = [name.strip() for name in against.split(",")]
    engines = EngineMaker(
        config.generator, ModelStore(config.cache_dir), at_once=len(baselines) + 1, kv_tokens=kv_tokens
    )
    systems = Systems(engines, config.controller, config.cache_dir / "profiles")
    benchmark = ReplayBenchmark(
        systems, baselines, ReplaySettings(requests, warm_up, seed, tuple(sorted(numbers(rates, "--rates"))))
    )
    with StepBars() as show:
        drawn = retrieved_prompts(config, data, workload, questions, part_tokens, top_k, seed, show)
        result = asyncio.run(benchmark.run(list(drawn.all()), drawn.draw(popularity, seed), show))
    if as_json:
        print_json(result)
        return
    table = Table("system", "rate", "served", "mean TTFT", "p99 TTFT", "tokens cached", "sustained")
    for name, system in result.systems.items():
        rows = [("cold", "", system.cold), ("unloaded", "", system.unloaded)]
        for number, row in enumerate(system.loaded):
            rows.append((f"{row.rate:g}/s", "yes" if number < system.sustained else "no", row))
        for title, sustained, row in rows:
            table.add_row(
                name,
                title,
                f"{row.served_per_s:.3g}/s",
                f"{row.mean_ttft_ms:.0f} ms",
                f"{row.p99_ttft_ms:.0f} ms",
                f"{row.token_hit_rate:.0%}",
                sustained,
            )
    results.print(table)
    at_least = "" if result.systems[OURS].beaten else "at least "
    for name, ratio in result.ttft_ratio.items():
        by_rate = ", ".join(f"{each:.2f}" for each in result.ttft_ratio_by_rate[name])
        results.print(
            f"against {name}: mean TTFT {ratio:.2f} x lower ({by_rate} by rate; "
            f"{result.ttft_ratio_unloaded[name]:.2f} unloaded), "
            f"throughput {at_least}{result.throughput_ratio[name]:.2f} x higher",
            highlight=False,
        )
