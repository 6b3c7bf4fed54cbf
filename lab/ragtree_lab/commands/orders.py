"""``ragtree bench orders``: what the order of documents does to cache hits and answer quality.

Measures token hit rate, TTFT and answer scores for retrieval, canonical and cached-first order, the latter with and
without a bound on how far a document moves. The baseline is retrieval order, in the same run.

Limits: questions come in topics, so that documents repeat. Small models answer real questions poorly; look at the
needles, and at the differences between orders and their intervals.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, SeedOption, TopKOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.orders import Difference
    from ragtree_lab.workloads.datasets import Questions


def orders(
    sets: Annotated[
        str,
        typer.Option(
            help="Question sets, separated by commas: folders below --data, or needles@CORPUS: codes hidden in the "
            "documents of one, which small models find."
        ),
    ] = "needles@squad,squad",
    questions: Annotated[int, typer.Option(min=2, help="Questions per set; each is asked in every order.")] = 200,
    topic_questions: Annotated[
        int, typer.Option(min=1, help="Questions per topic. The more, the more often documents repeat.")
    ] = 20,
    top_k: TopKOption = 5,
    score_gap: Annotated[
        float, typer.Option(min=0, help="The bound of the bounded cached-first order: controller.document_score_gap.")
    ] = 0.05,
    at_once: Annotated[int, typer.Option(min=1, help="Questions that run at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per answer; decoding is greedy.")] = 32,
    instruction: Annotated[
        str, typer.Option(help="Text below each question; may be empty.")
    ] = "Answer in a few words.",
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare token hit rate, TTFT and answer scores of retrieval, canonical and cached-first document order."""
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from protocol.plans import DocumentOrder
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.systems import Systems
    from ragtree_lab.orders import Arrangement, OrdersBenchmark, OrdersSettings
    from ragtree_lab.workloads.topics import TopicDraw

    config = load_config()
    # Open all sets first: a missing one should fail before hours of embedding.
    question_sets = [_questions(data, name, seed) for name in dict.fromkeys(name.strip() for name in sets.split(","))]
    models = ModelStore(config.cache_dir)
    arrangements = [*map(Arrangement, DocumentOrder), Arrangement(DocumentOrder.CACHED_FIRST, score_gap)]
    engines = ComparedEngines(config.generator, models, at_once=len(arrangements))
    benchmark = OrdersBenchmark(
        {
            arrangement: Systems(
                engines,
                config.controller.model_copy(update={"document_score_gap": arrangement.score_gap}),
                config.cache_dir / "profiles",
            )
            for arrangement in arrangements
        },
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
        "subspan over retrieval (95 %)",
        "F1",
        "F1 over retrieval (95 %)",
    )
    for row in result.rows:
        table.add_row(
            row.set,
            row.order,
            f"{row.token_hit_rate:.1%}",
            f"{row.mean_ttft_ms:.0f} ms",
            f"{row.exact_match:.3f}",
            f"{row.subspan_match:.3f}",
            _shown(row.subspan_over_retrieval),
            f"{row.f1:.3f}",
            _shown(row.f1_over_retrieval),
        )
    results.print(table)
    for row in {row.set: row for row in result.rows}.values():
        results.print(
            f"{row.set}: {row.questions} questions; the prompt holds a right answer for {row.answer_in_prompt:.0%}; "
            f"{row.repeated_documents:.0%} of the documents were in an earlier prompt",
            highlight=False,
        )


def _questions(data: Path, name: str, seed: int) -> "Questions":
    from ragtree_lab.workloads.needles import NEEDLES, NeedleSet
    from ragtree_lab.workloads.question_sets import QuestionSet

    asked, _, corpus = name.partition("@")
    return NeedleSet(data, corpus or "squad", seed) if asked == NEEDLES else QuestionSet(data, name)


def _shown(gain: "Difference | None") -> str:
    return f"{gain.mean:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})" if gain else ""
