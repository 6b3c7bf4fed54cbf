"""``ragtree eval``: scores a running stack on a user's own questions."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from examine.signals import ended_by_signals, undisturbed_by_signals
from protocol.documents import DEFAULT_COLLECTION
from protocol.errors import ConfigError, RagtreeError
from protocol.plans import Reuse
from protocol.retrieval import SearchKind
from services.cli.connection import ApiKeyOption, CollectionOption, JsonOption, UrlOption, connect
from services.cli.output import StepBars, errors, print_json, results
from services.client import StackUnreachable

if TYPE_CHECKING:
    from examine.evaluation.asking import Mode
    from examine.evaluation.evaluation import Evaluation, EvaluationReport, ReportFolder

_SHOWN_FAILURES = 5


class AskedReuse(StrEnum):
    """Which KV prompts may use, as ``reuse`` of a query, or each question asked both exact and composed."""

    EXACT = "exact"
    COMPOSED = "composed"
    AUTO = "auto"
    BOTH = "both"


def evaluate(
    dataset: Annotated[
        Path,
        typer.Option(
            help='JSON lines of {"question": ..., "answers": [...], "document_ids": [...]}; the last two are optional.'
        ),
    ],
    collection: CollectionOption = DEFAULT_COLLECTION,
    top_k: Annotated[
        int | None, typer.Option(min=1, max=100, help="Chunks to answer from; by default the stack's own number.")
    ] = None,
    search: Annotated[
        SearchKind | None,
        typer.Option(help="Search by embeddings, by words, or by both. By default as the collection."),
    ] = None,
    reuse: Annotated[
        AskedReuse | None,
        typer.Option(
            help="Which KV prompts may use; both: ask each question composed and exact, and compare. By default as the "
            "stack is configured."
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only this number of questions, the first ones.")] = None,
    concurrency: Annotated[
        int,
        typer.Option(min=1, max=256, help="Questions asked at the same time. With 1, times are those without load."),
    ] = 1,
    clear_cache: Annotated[
        bool,
        typer.Option(
            "--clear-cache",
            help="Empty the stack's cache first; with --reuse both, ask all questions composed, empty it again, and "
            "ask them exact. Needs the right to administer the cache.",
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="New or empty folder for tables, figures, a picture and every answer.")
    ] = None,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running stack your own questions and score it: retrieval, answers, citations, latency and cache.

    Ctrl-C keeps what was measured. The exit code is 0 only if a question was answered.
    """
    from examine.evaluation.asking import Asker
    from examine.evaluation.evaluation import Evaluation, EvaluationSubject, ReportFolder
    from examine.evaluation.question_file import read_questions

    questions = read_questions(dataset, limit)
    client = connect(url, api_key)
    missing = client.readiness()
    if missing is not None:
        raise StackUnreachable(f"the stack at {client.url} answers no queries: {missing.reason}")
    folder = None if report is None else ReportFolder(report, "report")
    asked = EvaluationSubject(
        url=client.url,
        dataset=dataset.name,
        sha256=hashlib.sha256(dataset.read_bytes()).hexdigest(),
        started=datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        questions=len(questions),
        collection=collection,
        top_k=top_k,
        search=search,
        max_tokens=max_tokens,
        concurrency=concurrency,
        cleared=clear_cache,
    )
    modes = _modes(reuse)
    shared = {"collection": collection, "top_k": top_k, "search": search, "max_tokens": max_tokens}
    body: dict[str, Any] = {name: value for name, value in shared.items() if value is not None}
    with ended_by_signals(), StepBars() as show:
        clear = client.clear_cache if clear_cache else None
        evaluation = Evaluation(Asker(client.query, body, concurrency), modes, asked, folder, show, clear)
        try:
            evaluation.run(questions)
        except (SystemExit, RagtreeError):
            # An evaluation that ends early reports what it has measured.
            with undisturbed_by_signals():
                if evaluation.rows:
                    _publish(evaluation, folder, as_json=as_json, complete=False)
            raise
        except OSError as error:
            raise ConfigError(f"the report's folder {report} cannot be written: {error.strerror}", "report") from error
    if not _publish(evaluation, folder, as_json=as_json, complete=True).answered:
        raise typer.Exit(1)


def _modes(reuse: AskedReuse | None) -> "Sequence[Mode]":
    from examine.evaluation.asking import Mode
    from examine.evaluation.evaluation import BOTH

    if reuse is AskedReuse.BOTH:
        return BOTH
    return [Mode("as configured", None) if reuse is None else Mode(reuse.value, Reuse(reuse.value))]


def _publish(
    evaluation: "Evaluation", folder: "ReportFolder | None", *, as_json: bool, complete: bool
) -> "EvaluationReport":
    report = evaluation.report(complete=complete)
    if folder is not None:
        _write(report, evaluation, folder)
    if as_json:
        print_json(report)
    else:
        _show(report, folder)
    return report


def _write(report: "EvaluationReport", evaluation: "Evaluation", folder: "ReportFolder") -> None:
    import msgspec

    from examine.evaluation.evaluation import PICTURE, REPORT, REPORT_TEXT
    from examine.evaluation.plot import draw
    from examine.evaluation.tables import render

    try:
        folder.write(REPORT, msgspec.json.format(msgspec.json.encode(report)))
        if report.answered:
            draw(report, evaluation.rows, folder.path / PICTURE)
        folder.write(REPORT_TEXT, render(report).encode())
    except OSError as error:
        raise ConfigError(f"the report's folder cannot be written: {error.strerror}", "report") from error


def _show(report: "EvaluationReport", folder: "ReportFolder | None") -> None:
    from examine.evaluation.tables import figures, notes

    found = figures(report)
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(found.head):
        table.add_column(column, justify="right" if number else "left")
    for row in found.rows:
        table.add_row(*row)
    results.print(table)
    for sentence in notes(report):
        results.print(sentence, soft_wrap=True)
    for failure in report.failures[:_SHOWN_FAILURES]:
        place = f"line {failure.line} ({failure.mode})"
        errors.print(f"[red]failed[/] {place}: ", end="")
        errors.print(failure.error, markup=False, soft_wrap=True)
    if len(report.failures) > _SHOWN_FAILURES:
        errors.print(f"and {len(report.failures) - _SHOWN_FAILURES:,} more")
    if folder is not None:
        results.print(f"report: {folder.path}", markup=False, soft_wrap=True)
