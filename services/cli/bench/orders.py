"""``ragtree bench orders``: what the order of documents does to cache hits and answers."""

import asyncio
from typing import Annotated

import typer
from rich.table import Column, Table

from services.cli.bench.options import DEFAULT_DATA, DataOption, SeedOption, TopKOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def orders(
    sets: Annotated[str, typer.Option(help="Question sets: folders below --data, separated by commas.")] = (
        "nq_gold,squad"
    ),
    questions: Annotated[int, typer.Option(min=2, help="Questions of each set, each asked in every order.")] = 200,
    topic_questions: Annotated[
        int, typer.Option(min=1, help="Questions of a topic: the more of them, the more documents come back.")
    ] = 20,
    top_k: TopKOption = 5,
    at_once: Annotated[int, typer.Option(min=1, help="Questions that are asked together.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Greedy tokens of an answer at most.")] = 32,
    instruction: Annotated[
        str, typer.Option(help="What stands below each question; empty: nothing.")
    ] = "Answer in a few words.",
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Token hit rate, TTFT, exact match and F1 with documents in retrieval, canonical and cached-first order."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.measuring.systems import Systems
    from benchmarks.orders import OrdersBenchmark, OrdersSettings
    from benchmarks.workloads.question_sets import QuestionSet
    from benchmarks.workloads.topics import TopicDraw
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from protocol.plans import DocumentOrder

    config = load_config()
    # All of them, before anything of the first is embedded.
    question_sets = [QuestionSet(data, name) for name in dict.fromkeys(name.strip() for name in sets.split(","))]
    models = ModelStore(config.cache_dir)
    systems = Systems(
        EngineMaker(config.generator, models, at_once=len(DocumentOrder)),
        config.controller,
        config.cache_dir / "profiles",
    )
    benchmark = OrdersBenchmark(
        systems,
        GeneratorFactory(config.generator, models).layout(),
        OrdersSettings(at_once=at_once, max_tokens=max_tokens, instruction=instruction, seed=seed),
    )
    with StepBars() as show:
        draw = TopicDraw(config.retriever, config.cache_dir / "bench" / "recall", top_k, topic_questions, seed, show)
        drawn = {each.name: asyncio.run(draw.draw(each, questions)) for each in question_sets}
        result = asyncio.run(benchmark.run(drawn, show))
    if as_json:
        print_json(result)
        return
    table = Table(
        "set", Column("order", no_wrap=True), "cached", "mean TTFT", "exact", "subspan", "F1", "over retrieval (95 %)"
    )
    for row in result.rows:
        over = row.f1_over_retrieval
        table.add_row(
            row.set,
            row.order,
            f"{row.token_hit_rate:.1%}",
            f"{row.mean_ttft_ms:.0f} ms",
            f"{row.exact_match:.3f}",
            f"{row.subspan_match:.3f}",
            f"{row.f1:.3f}",
            f"{over.mean:+.3f} ({over.low:+.3f} to {over.high:+.3f})" if over else "",
        )
    results.print(table)
    for row in {row.set: row for row in result.rows}.values():
        results.print(
            f"{row.set}: {row.questions} questions, for {row.answer_in_prompt:.0%} of which a retrieved document holds "
            f"a right answer; an earlier prompt had {row.repeated_documents:.0%} of the documents",
            highlight=False,
        )
