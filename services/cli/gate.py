"""``ragtree gate``: whether composed reuse keeps this model's answers, and what was found out before."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from examine.gate import MOST_QUESTIONS
from examine.signals import ended_by_signals
from protocol.gate import DEPENDENCY
from services.cli.connection import JsonOption
from services.cli.output import StepBars, errors, print_json, results
from services.config import Config, load_config

if TYPE_CHECKING:
    from protocol.gate import GateReport

_TEXTS = 400
"""Texts to hide codes in."""

_LEAST_TEXTS = 50
"""With fewer, prompts would be too much alike."""

app = typer.Typer(no_args_is_help=True)


@app.callback()
def gate(context: typer.Context) -> None:
    """Examine whether composed reuse keeps the configured model's answers."""
    # An examination that is ended leaves no engine and no host memory behind.
    context.with_resource(ended_by_signals())


@app.command()
def run(
    method: Annotated[
        str | None,
        typer.Option(
            help="Selector of what is computed again; by default controller.recompute_method. `dependency`: none, but "
            "dependency attention over facts of a graph."
        ),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share that is computed again; by default controller.recompute_share."),
    ] = None,
    questions: Annotated[
        int,
        typer.Option(
            min=60, help="Most questions of each kind. Fewer are asked if a third or two thirds of them say enough."
        ),
    ] = MOST_QUESTIONS,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Ask questions about codes hidden in documents, composed and in full, or in facts, and keep the verdict.

    A stack uses it from its next start on. The exit code is 0 only if the gate is passed.
    """
    from cachectl.runtime.composing import GateFolder
    from examine.composing.rows import Way
    from examine.gate.examination import FactExamination, examine, probe_set

    config = load_config()
    way = Way(
        method or config.controller.recompute_method, config.controller.recompute_share if share is None else share
    )
    if method == DEPENDENCY:
        with StepBars() as show:
            examination = FactExamination(config.generator, config.cache_dir, show)
            report = asyncio.run(examination.report(questions, seed))
    else:
        probes = probe_set(_texts(config), questions, seed)
        with StepBars() as show:
            report = asyncio.run(examine(config.generator, config.cache_dir, way, probes, show))
    GateFolder(config.cache_dir).add(report)
    _show([report], as_json)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def show(as_json: JsonOption = False) -> None:
    """Show what was found out about every model on this machine."""
    from cachectl.runtime.composing import GateFolder

    reports = list(GateFolder(load_config().cache_dir).all())
    if not reports and not as_json:
        errors.print("No gate was run on this machine: `ragtree gate run`.")
    _show(reports, as_json)


def _texts(config: Config) -> list[str]:
    """Return texts of the stack's own documents, or of the standard library if it has too few."""
    from examine.composing.tasks import CHUNK_CHARACTERS, cut
    from retriever.demo_corpus.stdlib_corpus import stdlib_documents

    texts = _stored_texts(config, CHUNK_CHARACTERS)
    if len(texts) < _LEAST_TEXTS:
        errors.print("The stack has too few documents: codes are hidden in the standard library's.")
        long = (document.text for document in stdlib_documents() if len(document.text) >= CHUNK_CHARACTERS)
        texts = list(islice(long, _TEXTS))
    return [cut(text) for text in texts]


def _stored_texts(config: Config, characters: int) -> list[str]:
    from retriever.store.chunks import Chunks
    from retriever.store.database import Database

    texts: list[str] = []
    folders = config.shard_folders
    for shard in range(config.retriever.shards.count):
        file = folders.of(shard) / "store.sqlite3"
        if not file.exists():
            continue
        with closing(Database(file)) as database, database.read() as transaction:
            texts += Chunks().sample(transaction, _TEXTS, characters)
    return texts[:_TEXTS]


def _show(reports: "Sequence[GateReport]", as_json: bool) -> None:
    from protocol.gate import GateReports

    if as_json:
        print_json(GateReports(tuple(reports)))
        return
    table = Table("model", "method", "computed again", "task", "composed", "full prefill", "may lose", "passed")
    for report in reports:
        for task in report.tasks:
            table.add_row(
                report.model,
                report.method,
                f"{report.share:.0%}",
                task.name,
                f"{task.score:.3f}",
                f"{task.full_score:.3f}",
                f"{task.most_lost:.0%}" if task.tells else "tells nothing",
                "yes" if report.passed else "no",
            )
    if reports:
        results.print(table)
    for report in reports:
        if not report.passed:
            results.print(f"{report.model}, {report.method} {report.share:.0%}: {report.why}")
