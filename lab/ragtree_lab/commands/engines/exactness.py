"""``ragtree bench exactness``: checks that answers with the cache equal those without.

Measures mismatches of greedy tokens and differences of logprobs, on real questions, with KV loaded from all tiers. The
baseline is vLLM without any cache. A second run of the baseline shows how much it differs from itself.

The shipped model has 9 heads, which two ranks cannot share. ``--random-weights`` takes a small model with 8.

Limits: one model and dtype per run, short answers, a small cache. It does not measure speed.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, PartTokensOption, SeedOption, WorkloadOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def exactness(
    prompts: Annotated[int, typer.Option(min=2, help="Prompts to run, with the cache and without.")] = 500,
    dtype: Annotated[str, typer.Option(help="Type of weights and KV: float32 or bfloat16.")] = "float32",
    control: Annotated[
        int | None, typer.Option(min=1, help="How many of these prompts run twice without the cache; by default all.")
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens per answer.")] = 8,
    instances: Annotated[int, typer.Option(min=1, help="Engines that share host memory and disk.")] = 1,
    async_scheduling: Annotated[
        bool, typer.Option(help="Let vLLM schedule a step before the last one is done, as it does on CUDA.")
    ] = False,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Ranks of each engine.")] = 1,
    random_weights: Annotated[
        bool, typer.Option(help="Use a small model with random weights, whose heads 2, 4 or 8 ranks can share.")
    ] = False,
    composed_between: Annotated[
        bool, typer.Option(help="Before each prompt, compose one of the same documents in reversed order.")
    ] = False,
    workload: WorkloadOption = "squad",
    data: DataOption = DEFAULT_DATA,
    part_tokens: PartTokensOption = 220,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare greedy tokens with KV from all tiers with those without any cache, on real questions and documents."""
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from ragtree_lab.exactness import ExactnessBenchmark
    from ragtree_lab.families.shapes import SHARED
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.random_model import make_random_model
    from ragtree_lab.workloads.articles import article_parts, question_prompts
    from ragtree_lab.workloads.datasets import Dataset

    config = load_config()
    questions, store = Dataset(data, workload), ModelStore(config.cache_dir)
    settings = config.generator.model_copy(update={"dtype": dtype, "max_model_len": 2048})
    with ExitStack() as stack:
        if random_weights:
            folder = stack.enter_context(TemporaryDirectory(prefix="ragtree-bench-"))
            model = make_random_model(Path(folder), store.resolve(settings.model), SHARED)
            settings = settings.model_copy(update={"model": str(model), "adapters": {}})
        factory = GeneratorFactory(settings, store)
        tokenizer = factory.tokenizer()
        parts = article_parts(questions, lambda text: len(tokenizer.encode(text)), part_tokens)
        asked = question_prompts(questions, parts, factory.layout(), prompts, answer_tokens, seed)
        benchmark = ExactnessBenchmark(
            ComparedEngines(settings, store),
            config.controller,
            config.cache_dir / "profiles",
            dtype,
            answer_tokens,
            control or len(asked),
            instances,
            async_scheduling,
            tensor_parallel,
            composed_between,
        )
        result = asyncio.run(benchmark.run(asked, stack.enter_context(StepBars())))
    if as_json:
        print_json(result)
        return
    plain = result.without_cache
    results.print(
        f"{result.prompts} prompts in {result.dtype}, {result.answer_tokens} tokens each: "
        f"{result.mismatches} mismatches with the cache, {plain.mismatches} of {plain.prompts} between two runs "
        f"without; largest difference of logprobs {result.largest_logprob_difference:.2g}, without cache "
        f"{plain.largest_logprob_difference:.2g}",
        highlight=False,
    )
    sources = ", ".join(f"{tokens:,} {source}" for source, tokens in sorted(result.tokens.items()))
    results.print(f"prompt tokens: {sources}; {result.restarts} restart; {result.lost} copies lost", highlight=False)
    if composed_between:
        results.print(f"{result.composed_tokens:,} tokens of requests in between were composed", highlight=False)
    if result.first_mismatch:
        results.print(result.first_mismatch, highlight=False)
