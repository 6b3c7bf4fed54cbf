"""``ragtree bench replay``: the stack against plain vLLM under load, on real questions and real retrieval."""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.popularity import Popularity
from services.cli.bench.options import DEFAULT_DATA, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def replay(
    workload: Annotated[str, typer.Option(help="The question set: a folder below --data.")] = "squad",
    against: Annotated[str, typer.Option(help="Baselines: vllm (no reuse), vllm-prefix (its own cache).")] = "vllm",
    popularity: Annotated[
        Popularity, typer.Option(help="paper: the top 3 % of documents take 60 % of requests; own: as questions come.")
    ] = Popularity.PAPER,
    rates: Annotated[str, typer.Option(help="Requests a second to sweep, from the lowest up.")] = "0.1,0.2,0.4,0.8",
    requests: Annotated[int, typer.Option(min=2, help="Requests at each rate, on each system.")] = 40,
    warm_up: Annotated[int, typer.Option(min=0, help="Requests between the cold ones and the sweep.")] = 200,
    questions: Annotated[int, typer.Option(min=1, help="Questions to retrieve documents for.")] = 5000,
    part_tokens: Annotated[int, typer.Option(min=16, help="A document has at most so many tokens.")] = 1000,
    top_k: Annotated[int, typer.Option(min=1, help="Documents of a prompt.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """TTFT and throughput against vLLM without reuse, and with its own prefix cache, under Poisson arrivals."""
    from benchmarks.articles import article_parts
    from benchmarks.engines import EngineMaker
    from benchmarks.question_sets import QuestionRetrieval, QuestionSet
    from benchmarks.replay import ReplayBenchmark
    from benchmarks.retrieved_prompts import RetrievedPrompts
    from generator.factory import GeneratorFactory
    from generator.models import ModelStore

    config = load_config()
    models = ModelStore(config.cache_dir)
    factory = GeneratorFactory(config.generator, models)
    tokenizer, layout = factory.tokenizer(), factory.layout()
    question_set = QuestionSet(data, workload)
    benchmark = ReplayBenchmark(
        EngineMaker(config.generator, models),
        config.controller,
        config.cache_dir / "profiles",
        [name.strip() for name in against.split(",")],
    )
    with StepBars() as show:
        parts = article_parts(question_set, lambda text: len(tokenizer.encode(text)), part_tokens)
        drawn = RetrievedPrompts(parts, layout, top_k, max_tokens=1)
        drawn.retrieve(question_set, QuestionRetrieval(config.retriever, config.cache_dir, show), questions, seed)
        swept = sorted(_rates(rates))
        result = asyncio.run(
            benchmark.run(
                lambda: drawn.draw(popularity, seed),
                swept,
                requests,
                warm_up,
                drawn.documents,
                popularity,
                seed,
                show,
            )
        )
    if as_json:
        print_json(result)
        return
    table = Table("system", "rate", "mean TTFT", "p99 TTFT", "tokens cached", "sustained")
    for name, system in result.systems.items():
        for kind, row in (("cold", system.cold), *(("", row) for row in system.warm)):
            table.add_row(
                f"{name} {kind}",
                f"{row.rate:g}/s",
                f"{row.mean_ttft_ms:.0f} ms",
                f"{row.p99_ttft_ms:.0f} ms",
                f"{row.token_hit_rate:.0%}",
                "" if row.rate > system.throughput or kind else "yes",
            )
    results.print(table)
    for name, ratio in result.ttft_ratio.items():
        results.print(
            f"against {name}: mean TTFT {ratio:.2f} x lower, throughput {result.throughput_ratio[name]:.2f} x higher",
            highlight=False,
        )


def _rates(given: str) -> list[float]:
    try:
        rates = [float(rate) for rate in given.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0:
        raise typer.BadParameter("give positive numbers, separated by commas", param_hint="--rates")
    return rates
