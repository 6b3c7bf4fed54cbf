"""``ragtree bench compose``: answers and speed of composed prompts, by method and share.

Measures how much of a full prefill's score composed prompts keep, how often their tokens agree, and how much sooner the
first token comes. The baseline is the full prefill of the same prompt, in the same run.

Limits: no controller and no search. Small models answer real questions poorly; look at the needles, which they find.
"""

import asyncio
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption, SeedOption, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from examine.composing.tasks import Task
    from ragtree_lab.compose.benchmark import ComposeResult

_SELECTING = "query,cacheblend,epic,random"
_MOST_CHARACTERS_PER_TOKEN = 8
"""Of a long text."""

_SELECTING_NOTHING = ("none", "ape")


def compose(
    tasks: Annotated[
        str,
        typer.Option(
            help="Tasks, separated by commas: multi-key, multi-value and two-hop, which hide codes in real text, or "
            "question sets: folders below --data."
        ),
    ] = "multi-key,multi-value,two-hop,squad",
    methods: Annotated[
        str, typer.Option(help="Selectors of what is computed again, separated by commas.")
    ] = _SELECTING,
    shares: Annotated[
        str, typer.Option(help="Shares of the known documents' tokens that are computed again, separated by commas.")
    ] = "0.05,0.1,0.2,0.4",
    questions: Annotated[int, typer.Option(min=2, help="Questions per task; each is asked in every way.")] = 300,
    chunks: Annotated[int, typer.Option(min=2, help="Chunks of real text in a prompt.")] = 6,
    corpus: Annotated[
        str, typer.Option(help="Question set whose documents hide the codes, and measure speed.")
    ] = "squad",
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the measurement of speed.")] = 10,
    documents: Annotated[
        int, typer.Option(min=2, help="Documents per prompt when speed is measured; all but the first are donated.")
    ] = 6,
    document_tokens: Annotated[int, typer.Option(min=16, help="Tokens of each of these documents.")] = 300,
    plot: Annotated[
        Path | None, typer.Option(help="Draw scores and divergence by share and method into this picture.")
    ] = None,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare answers and speed of composed prompts with those of full prefills. Ctrl-C keeps results."""
    from examine.composing.benchmark import ask_all
    from examine.composing.rows import FULL, Way
    from examine.composing.tasks import NEEDLES, first, needle_tasks
    from ragtree_lab.compose.benchmark import SpeedBenchmark, SpeedProbe
    from ragtree_lab.compose.set_tasks import chunk_texts, long_texts, set_tasks

    config = load_config()
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",")))
    texts = chunk_texts(data, corpus) if rounds or any(name in NEEDLES for name in names) else []
    asked: Mapping[str, Sequence[Task]] = {
        name: first(
            needle_tasks(name, texts, chunks, seed) if name in NEEDLES else set_tasks(data, name, chunks, seed),
            questions,
        )
        for name in names
    }
    given = [name.strip() for name in methods.split(",")]
    ways = [Way(FULL, 0.0), *(Way(method, 0.0) for method in _SELECTING_NOTHING)]
    ways += [Way(method, share) for method in given for share in numbers(shares, "--shares", 1.0)]
    speed = None
    if rounds:
        long = long_texts(texts, _MOST_CHARACTERS_PER_TOKEN * document_tokens)
        prompts = needle_tasks("multi-key", long, documents, seed)
        speed = SpeedProbe(list(islice(prompts, rounds + 1)), document_tokens)
    with StepBars() as show:
        benchmark = SpeedBenchmark(config.generator, config.cache_dir, ways, show)
        complete = False
        try:
            asyncio.run(benchmark.measure(asked, speed, ask_all))
            complete = True
        finally:
            # An interrupted run keeps what it has measured.
            if benchmark.rows:
                _show(benchmark.result(complete=complete), plot, as_json)


def _show(result: "ComposeResult", plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from ragtree_lab.compose.plot import draw

        draw(result.rows, plot)
    if as_json:
        print_json(result)
        return
    table = Table(
        Column("task", no_wrap=True),
        Column("method", no_wrap=True),
        "share",
        "computed again",
        "score",
        "full prefill",
        "difference (95 %)",
        "same token",
        "KL",
        "TTFT",
    )
    for row in result.rows:
        table.add_row(
            row.task,
            row.method,
            f"{row.share:.0%}" if row.share else "",
            f"{row.actual_share:.1%}",
            f"{row.score:.3f}",
            f"{row.full_score:.3f}",
            f"{row.difference.low:+.3f} to {row.difference.high:+.3f}",
            f"{row.top1_agreement:.1%}",
            f"{row.kl:.3f}",
            f"{row.prefill_speedup:.1f} x sooner" if row.prefill_speedup else "",
        )
    results.print(table)
    if not result.complete:
        results.print("The run was ended before everything was measured.")
