"""``ragtree bench prompts``: answers and refusals by system prompt, and repetition by sampling.

Measures F1, exact match, refusals of answerable and of unanswerable questions, and how much answers repeat themselves.
The baseline is the configured system prompt with greedy decoding, in the same run, question by question.

Limits: one model. Select on some questions, and confirm on others with ``--skip``.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, SeedOption, TopKOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ragtree_lab.prompts.benchmark import PromptsResult
    from ragtree_lab.prompts.rows import PromptRow


def prompts(
    sets: Annotated[
        str, typer.Option(help="Question sets, separated by commas: folders below --data.")
    ] = "squad,nq_gold,rgb,dragonball",
    system_prompts: Annotated[
        str, typer.Option(help="Candidates, separated by commas; empty: none; by default all.")
    ] = "all",
    samplings: Annotated[
        str, typer.Option(help="Ways to sample, separated by commas; empty: none; by default all.")
    ] = "all",
    questions: Annotated[
        int, typer.Option(min=2, help="Answerable questions per set, and as many unanswerable ones.")
    ] = 100,
    skip: Annotated[
        int, typer.Option(min=0, help="Questions of each kind to pass over, because they served for a selection.")
    ] = 0,
    top_k: TopKOption = 3,
    at_once: Annotated[int, typer.Option(min=1, help="Questions that run at the same time, in all ways.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens per answer.")] = 256,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare answers, refusals and repetition by system prompt and sampling. Ctrl-C keeps results."""
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.prompts.benchmark import PromptsBenchmark, PromptsSettings
    from ragtree_lab.prompts.questions import QuestionDraw
    from ragtree_lab.prompts.ways import SAMPLINGS, SYSTEM_PROMPTS, ways_of
    from ragtree_lab.workloads.question_sets import QuestionSet

    config = load_config()
    ways = ways_of(
        _chosen(system_prompts, SYSTEM_PROMPTS, "--system-prompts"), _chosen(samplings, SAMPLINGS, "--samplings")
    )
    question_sets = [QuestionSet(data, name) for name in dict.fromkeys(name.strip() for name in sets.split(","))]
    models = ModelStore(config.cache_dir)
    with StepBars() as show:
        benchmark = PromptsBenchmark(
            ComparedEngines(config.generator, models, threads=config.generator.cpu_threads),
            config.generator.model,
            GeneratorFactory(config.generator, models).layout(),
            config.generator.system_prompt,
            ways,
            PromptsSettings(at_once=at_once, max_tokens=max_tokens, seed=seed),
            show,
        )
        draw = QuestionDraw(config.retriever, config.cache_dir / "bench" / "recall", top_k, seed, show)
        drawn = {each.name: asyncio.run(draw.draw(each, questions, skip)) for each in question_sets}
        complete = False
        try:
            asyncio.run(benchmark.run(drawn))
            complete = True
        finally:
            # An interrupted run keeps what it has measured.
            if benchmark.has_results:
                _show(benchmark.result(complete=complete), as_json)


def _chosen(given: str, known: "Iterable[str]", option: str) -> list[str]:
    """Parse names, separated by commas; "all" means all known ones. Raises typer.BadParameter."""
    names = list(known)
    if given == "all":
        return names
    chosen = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not set(chosen) <= set(names):
        raise typer.BadParameter(f"give some of {', '.join(names)}", param_hint=option)
    return chosen


def _show(result: "PromptsResult", as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    table = Table(
        "set",
        Column("system prompt", no_wrap=True),
        Column("sampling", no_wrap=True),
        "score",
        "difference (95 %)",
        "F1",
        "exact",
        "subspan",
        "refused, answerable",
        "refused, unanswerable",
        "repeated",
        "looping",
        "cut",
        "tokens",
    )
    for row in result.rows:
        table.add_row(
            row.set,
            row.prompt,
            row.sampling,
            f"{row.score:.3f}",
            _difference(row),
            f"{row.f1:.3f}",
            f"{row.exact_match:.3f}",
            f"{row.subspan_match:.3f}",
            f"{row.refused_answerable:.1%}",
            f"{row.refused_unanswerable:.1%}",
            f"{row.repeated_4grams:.1%}",
            f"{row.looping:.1%}",
            f"{row.cut:.1%}",
            f"{row.tokens:.0f}",
        )
    results.print(table)
    for name, text in result.texts.items():
        results.print(f"{name}: {text}", highlight=False)
    if not result.complete:
        results.print("The run was ended before everything was measured.")


def _difference(row: "PromptRow") -> str:
    if "score" not in row.differences:
        return ""
    found = row.differences["score"]
    return f"{found.low:+.3f} to {found.high:+.3f}"
