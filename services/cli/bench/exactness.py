"""``ragtree bench exactness``: the same greedy tokens with the cache as without."""

import asyncio
from typing import Annotated

import typer

from services.cli.bench.options import DEFAULT_DATA, DataOption, PartTokensOption, SeedOption, WorkloadOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def exactness(
    prompts: Annotated[int, typer.Option(min=2, help="Prompts to ask, with the cache and without.")] = 500,
    dtype: Annotated[str, typer.Option(help="Type of weights and KV: float32, or bfloat16.")] = "float32",
    control: Annotated[
        int | None, typer.Option(min=1, help="Prompts of these to ask twice without the cache; all by default.")
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens of each answer.")] = 8,
    workload: WorkloadOption = "squad",
    data: DataOption = DEFAULT_DATA,
    part_tokens: PartTokensOption = 220,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Greedy tokens of real questions over real documents, with KV from all tiers, against none cached."""
    from benchmarks.exactness import ExactnessBenchmark
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.workloads.articles import article_parts, question_prompts
    from benchmarks.workloads.datasets import Dataset
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore

    config = load_config()
    settings = config.generator.model_copy(update={"dtype": dtype, "max_model_len": 2048})
    factory = GeneratorFactory(settings, ModelStore(config.cache_dir))
    tokenizer, questions = factory.tokenizer(), Dataset(data, workload)
    parts = article_parts(questions, lambda text: len(tokenizer.encode(text)), part_tokens)
    asked = question_prompts(questions, parts, factory.layout(), prompts, answer_tokens, seed)
    benchmark = ExactnessBenchmark(
        EngineMaker(settings, ModelStore(config.cache_dir)),
        config.controller,
        config.cache_dir / "profiles",
        dtype,
        answer_tokens,
        control or len(asked),
    )
    with StepBars() as show:
        result = asyncio.run(benchmark.run(asked, show))
    if as_json:
        print_json(result)
        return
    plain = result.without_cache
    results.print(
        f"{result.prompts} prompts in {result.dtype}, {result.answer_tokens} tokens each: "
        f"{result.mismatches} mismatches with the cache, {plain.mismatches} of {plain.prompts} between two runs "
        f"without; logprobs differ by {result.largest_logprob_difference:.2g} at most, without by "
        f"{plain.largest_logprob_difference:.2g}",
        highlight=False,
    )
    sources = ", ".join(f"{tokens:,} {source}" for source, tokens in sorted(result.tokens.items()))
    results.print(f"prompt tokens: {sources}; {result.restarts} restart; {result.lost} copies lost", highlight=False)
    if result.first_mismatch:
        results.print(result.first_mismatch, highlight=False)
