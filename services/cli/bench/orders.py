"""``ragtree bench orders``: what the order of documents does to cache hits and answer quality.

Measures token hit rate, TTFT, exact match and F1 for retrieval, canonical and cached-first order. The baseline is
retrieval order, in the same run.

Limits: questions come in topics, so that documents repeat. Small models answer poorly, so look at the differences
between orders and their intervals rather than at the scores.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Column, Table

from services.cli.bench.options import DEFAULT_DATA, DataOption, SeedOption, TopKOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def orders(
    sets: Annotated[str, typer.Option(help="Question sets, separated by commas: folders below --data.")] = (
        "nq_gold,squad"
    ),
    questions: Annotated[int, typer.Option(min=2, help="Questions per set; each is asked in every order.")] = 200,
    topic_questions: Annotated[
        int, typer.Option(min=1, help="Questions per topic. The more, the more often documents repeat.")
    ] = 20,
    top_k: TopKOption = 5,
    at_once: Annotated[int, typer.Option(min=1, help="Questions that run at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per answer; decoding is greedy.")] = 32,
    instruction: Annotated[
        str, typer.Option(help="Text below each question; may be empty.")
    ] = "Answer in a few words.",
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare token hit rate, TTFT, exact match and F1 of retrieval, canonical and cached-first document order."""
    from benchmarks.measuring.engines import EngineMaker
    from benchmarks.measuring.systems import Systems
    from benchmarks.orders import OrdersBenchmark, OrdersSettings
    from benchmarks.workloads.question_sets import QuestionSet
    from benchmarks.workloads.topics import TopicDraw
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from protocol.plans import DocumentOrder

    config = load_config()
    # Open all sets first: a missing one should fail before hours of embedding.
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
        "set",
        Column("order", no_wrap=True),
        "cached",
        "mean TTFT",
        "exact",
        "subspan",
        "F1",
        "F1 over retrieval (95 %)",
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
            f"{row.set}: {row.questions} questions; the prompt holds a right answer for {row.answer_in_prompt:.0%}; "
            f"{row.repeated_documents:.0%} of the documents were in an earlier prompt",
            highlight=False,
        )
