"""``ragtree bench fixed-costs``: what a request costs besides computing.

A random model of 8 layers of 128 with the shipped tokenizer computes next to nothing, as a GPU does. Measures loads
from each tier above vLLM's own prefix cache, with both of vLLM's schedulers; what the stack adds to its engine; and
requests a second over HTTP, against ``vllm serve`` with its prefix cache and the same prompts.

Limits: synthetic documents, one machine, whose cores the servers share with their clients.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.own_stack import own_stack
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import Config, load_config

if TYPE_CHECKING:
    from ragtree_lab.fixed_costs.benchmark import FixedCosts, Sizes


def fixed_costs(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of loads, each with new documents.")] = 30,
    samples: Annotated[int, typer.Option(min=1, help="Samples of what the stack adds.")] = 48,
    prompts: Annotated[int, typer.Option(min=1, help="Different prompts at saturation.")] = 64,
    turns: Annotated[int, typer.Option(min=1, help="How often each prompt is asked at saturation.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Measure what a request costs besides computing, against vLLM's own prefix cache. Starts a stack and engines."""
    from ragtree_lab.fixed_costs.benchmark import Sizes

    result = asyncio.run(_fixed_costs(load_config(), Sizes(rounds, samples, prompts, turns)))
    if as_json:
        print_json(result)
        return
    table = Table("scheduler", "prefix", "vLLM's own cache", "GPU", "host memory", "disk")
    for scheduler, floors in result.floor_ms.items():
        for length, floor in floors.items():
            more = (f"{by_length[length]:+.1f} ms" for by_length in result.load_ms[scheduler].values())
            table.add_row(scheduler, f"{length} tokens", f"{floor:.1f} ms", *more)
    results.print(table)
    per_token = "" if result.per_token_ms_16 is None else f", and {result.per_token_ms_16:+.2f} ms to a later token"
    results.print(
        f"the stack adds {result.stack_ms:.1f} ms to the first token at one stream, {result.stack_ms_16:.1f} ms at 16"
        f"{per_token}",
        highlight=False,
    )
    for name, rate in result.requests_per_s.items():
        found = f"{result.cached_share[name]:.0%} of the prompts' tokens cached"
        results.print(f"{name}: {rate:.1f} requests/s at 16 streams, {found}", highlight=False)
    results.print(
        f"TTFT over that of vllm serve: {result.ttft_ratio['one']:.2f} x at one stream, "
        f"{result.ttft_ratio['load']:.2f} x at 16",
        highlight=False,
    )


async def _fixed_costs(config: Config, sizes: "Sizes") -> "FixedCosts":
    from generator.models import ModelStore
    from ragtree_lab.fixed_costs import benchmark
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.random_model import make_random_model
    from ragtree_lab.overhead import OverheadBenchmark

    models = ModelStore(config.cache_dir)
    with tempfile.TemporaryDirectory(prefix="ragtree-model-") as folder, StepBars() as show:
        model = make_random_model(Path(folder) / "model", models.resolve(config.generator.model), benchmark.SHAPE)
        settings = config.generator.model_copy(update={"model": str(model)})
        engines = ComparedEngines(settings, models, at_once=2, threads=settings.cpu_threads)
        loads = await benchmark.load_costs(engines, sizes.rounds, show)
        small = config.model_copy(update={"generator": settings})
        async with own_stack(small, {"RAGTREE_GENERATOR__MODEL": str(model)}) as (http, parts):
            overhead = OverheadBenchmark(
                http,
                parts.retriever,
                parts.generator,
                parts.layout,
                tenant=config.gateway.default_tenant,
                collection=benchmark.COLLECTION,
                top_k=benchmark.TOP_K,
                max_tokens=benchmark.DECODED_TOKENS,
            )
            stack = benchmark.StackCosts(http, overhead, sizes)
            prompts = await stack.prepare()
            added = await stack.overhead(show)
            ours = await stack.saturation(show)
        vllm = await benchmark.vllm_saturation(settings, models, prompts, sizes, show)
    return benchmark.fixed_costs(loads, added, ours, vllm)
