"""The text of ``report.md``."""

from collections.abc import Iterable, Iterator, Sequence

from examine.evaluation.evaluation import ANSWERS, PICTURE, REPORT, EvaluationReport
from examine.evaluation.tables import figures, notes


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Bars in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_MOST_FAILURES = 20


def render(report: EvaluationReport) -> str:
    """Return the report, which links the files of its folder."""
    return "\n\n".join(_parts(report)) + "\n"


def _parts(report: EvaluationReport) -> Iterator[str]:
    yield "# Evaluation"
    if not report.complete:
        yield "**Interrupted**: only the questions that were asked before count."
    yield table(("fact", "value"), _facts(report))
    found = figures(report)
    yield table(found.head, found.rows)
    if report.answered:
        yield f"![scores and times to the first token]({PICTURE})"
    yield from notes(report)
    if report.failures:
        yield f"## {len(report.failures):,} without an answer"
        shown = report.failures[:_MOST_FAILURES]
        yield table(
            ("line", "mode", "error"), [(str(one.line), one.mode, " ".join(one.error.split())) for one in shown]
        )
        if len(report.failures) > len(shown):
            yield f"All are in [{REPORT}]({REPORT})."
    yield f"Files: [{REPORT}]({REPORT}), [{ANSWERS}]({ANSWERS})"


def _facts(report: EvaluationReport) -> Iterator[tuple[str, str]]:
    asked = report.asked
    yield "started", asked.started
    yield "stack", asked.url
    yield "model", ", ".join(report.models) or "-"
    yield "questions", f"{asked.questions:,} of {asked.dataset} (SHA-256 {asked.sha256[:12]})"
    yield "collection", asked.collection
    for name in ("top_k", "search", "max_tokens"):
        value = getattr(asked, name)
        yield name, "the stack's own" if value is None else str(value)
    yield "concurrency", str(asked.concurrency)
    yield "cache emptied before each mode", "yes" if asked.cleared else "no"
