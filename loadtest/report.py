"""Write a run's report from its folder. ``python -m loadtest.report FOLDER`` writes it again."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtest.reporting import plots
from loadtest.reporting.markdown_report import render
from loadtest.reporting.request_records import QueryRecord, WriteAction, WriteRecord, read_records
from loadtest.reporting.results import Results, StepResults
from loadtest.reporting.run_facts import RunFacts
from loadtest.reporting.summary import summarize, summarize_writes


def write_report(folder: Path) -> Results:
    """Write ``results.json``, the plots and ``report.md`` from the facts and records in ``folder``."""
    facts = RunFacts.read(folder)
    records = read_records(folder)
    queries = [record for record in records if isinstance(record, QueryRecord)]
    results = _results(facts, queries, [record for record in records if isinstance(record, WriteRecord)])
    text = msgspec.json.format(msgspec.json.encode(results), indent=2)
    (folder / "results.json").write_bytes(text + b"\n")
    plots.draw_all(queries, results.total.seconds, folder)
    (folder / "report.md").write_text(render(results), encoding="utf-8")
    return results


def _results(facts: RunFacts, queries: Sequence[QueryRecord], writes: Sequence[WriteRecord]) -> Results:
    seconds = max([0.0, *(query.ended or query.at for query in queries)])
    by_step = [(step, [q for q in queries if 0 <= q.at - step.begin < step.seconds]) for step in facts.steps]
    return Results(
        run=facts,
        total=summarize(queries, seconds, facts.settings),
        steps=[StepResults(step, summarize(those, step.seconds, facts.settings)) for step, those in by_step if those],
        writes={
            action: summarize_writes(of_action)
            for action in WriteAction
            if (of_action := [write for write in writes if write.action is action])
        },
    )


if __name__ == "__main__":
    write_report(Path(sys.argv[1]))
