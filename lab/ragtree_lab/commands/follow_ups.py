"""``ragtree bench follow-ups``: whether follow-up questions find their documents.

Measures the share of conversations whose last question finds a document that answers it: searched alone, which is the
baseline, joined with the question before it, and rewritten by the configured model.

Limits: a small set of our own about Python's standard library. No answers stand between the questions.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import Config, load_config

if TYPE_CHECKING:
    from ragtree_lab.follow_ups.benchmark import FollowUpBenchmark, FollowUpResult


def follow_ups(
    rewrite: Annotated[bool, typer.Option(help="Also let the configured model rewrite the questions.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Search the last questions of conversations alone, joined with those before them, and rewritten by the model."""
    from gateway.query.follow_ups import FollowUps
    from ragtree_lab.follow_ups.benchmark import KINDS, FollowUpBenchmark

    config = load_config()
    with StepBars() as show:
        folder = config.cache_dir / "bench" / "follow-ups"
        benchmark = FollowUpBenchmark(config.retriever, folder, show)
        result = asyncio.run(_with_model(benchmark, config) if rewrite else benchmark.run())
    if as_json:
        print_json(result)
        return
    ways = [way for way in FollowUps if any(row.way is way for row in result.rows)]
    table = Table("last question", "conversations", *ways, box=None)
    for kind, conversations in KINDS.items():
        shares = [f"{row.found_at_5:.2f}" for row in result.rows if row.kind == kind]
        table.add_row(kind, str(len(conversations)), *shares)
    results.print(table)
    if result.rewriting is not None:
        figures = result.rewriting
        results.print(
            f"{figures.model} took {figures.p50_ms:.0f} ms for a question (median); {figures.unusable} of "
            f"{len(figures.rewrites)} could not be used and were joined",
            highlight=False,
        )


async def _with_model(benchmark: "FollowUpBenchmark", config: Config) -> "FollowUpResult":
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from ragtree_lab.follow_ups.rewriting import ModelRewriter
    from ragtree_lab.measuring.engines import ComparedEngines

    models = ModelStore(config.cache_dir)
    layout = GeneratorFactory(config.generator, models).layout()
    async with ComparedEngines(config.generator, models).plain() as engine:
        return await benchmark.run(ModelRewriter(engine, layout), config.generator.model)
