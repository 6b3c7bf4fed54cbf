"""``ragtree bench all``: all benchmarks one after another, and one report.

Each benchmark has its own baselines and limits. This adds the folder of a report: ``report.md``, one JSON file and one
log a benchmark, and pictures.

Limits: one run of each benchmark. The quick sizes are too small for figures to rely on.
"""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from examine.evaluation.evaluation import REPORT_TEXT
from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption
from ragtree_lab.commands.common.suite_progress import SuiteProgress
from ragtree_lab.suite.catalogue import selected
from ragtree_lab.suite.facts import gather
from ragtree_lab.suite.outcome import Status, SuiteResult
from ragtree_lab.suite.report import duration
from ragtree_lab.suite.suite import Suite
from ragtree_lab.suite.suite_folder import SuiteFolder
from services.cli.connection import JsonOption
from services.cli.output import errors, print_json, results
from services.config import load_config

LAUNCHER = (sys.executable, "-m", "services.cli", "bench")
"""The command that runs one benchmark."""


def all_benchmarks(
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes, meant for about an hour in all on two cores.")
    ] = False,
    data: DataOption = DEFAULT_DATA,
    out: Annotated[
        Path | None,
        typer.Option(help="New or empty folder for the report; by default bench-report-DATE-TIME."),
    ] = None,
    only: Annotated[str, typer.Option(help="Benchmarks to run, separated by commas; by default all.")] = "",
    skip: Annotated[str, typer.Option(help="Benchmarks to leave out, separated by commas.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Run all benchmarks and write a report. Ctrl-C keeps results. The exit code is 0 only if none fails."""
    chosen = selected(_names(only), _names(skip))
    generator = load_config().generator
    folder = SuiteFolder(out or Path(f"bench-report-{datetime.now():%Y%m%d-%H%M%S}"))
    facts = gather(generator.engine, generator.model, generator.dtype, quick)
    with SuiteProgress(errors) as progress:
        suite = Suite(LAUNCHER, folder, facts, progress)
        try:
            suite.run(chosen, data, quick)
        finally:
            # An interrupted run shows what it has measured.
            result = SuiteResult(str(folder.path), suite.outcomes)
            print_json(result) if as_json else _show(result)
    if any(outcome.status is Status.FAILED for outcome in suite.outcomes):
        raise typer.Exit(1)


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _show(result: SuiteResult) -> None:
    table = Table("benchmark", "status", "h:mm:ss", "why")
    for outcome in result.benchmarks:
        table.add_row(outcome.name, outcome.status, duration(outcome.seconds), escape(outcome.why))
    results.print(table)
    results.print(f"report: {result.folder}/{REPORT_TEXT}", highlight=False, markup=False, soft_wrap=True)
