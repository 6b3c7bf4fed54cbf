"""The tables of an evaluation, as text for the terminal and for the report."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from examine.evaluation.evaluation import ANSWERS, PICTURE, REPORT, EvaluationReport
from examine.evaluation.summary import Mean, ModeSummary, Times

DIFFERENCE = "composed − exact"

_NAMES = {
    "reciprocal_rank": "MRR",
    "ndcg_at_10": "nDCG@10",
    "citation_precision": "citation precision",
    "exact_match": "exact match",
    "holds_answer": "holds a right answer",
    "f1": "F1",
    "rouge_l": "ROUGE-L",
}


class FigureTable(NamedTuple):
    """One table: its head, and its rows of as many cells. The first cell of a row names the figure."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def figures(report: EvaluationReport) -> FigureTable:
    """Return the table of all figures: a column a mode, and one of the difference, if there is one."""
    modes = report.modes.values()
    rows: list[tuple[str, ...]] = []
    for metric, name in _metrics(report):
        cells = [_scored(mode.scores.get(metric), compared=bool(report.differences)) for mode in modes]
        rows.append((name, *cells, _difference(report, metric, ".3f")))
    for metric, name in (("ttft_ms", "time to first token"), ("total_ms", "time to the whole answer")):
        for part in ("mean", "p50", "p95"):
            difference = _difference(report, metric, ",.0f", " ms") if part == "mean" else ""
            rows.append((f"{name}, {part}", *(_time(getattr(mode, metric), part) for mode in modes), difference))
    shares = ("cached", "composed", "computed")
    rows += [(f"prompt tokens, {part}", *(_share(mode, part) for mode in modes), "") for part in shares]
    for label, field in (("answers", "answered"), ("answers cut at their longest length", "cut"), ("failed", "failed")):
        rows.append((label, *(f"{getattr(mode, field):,}" for mode in modes), ""))
    if not report.differences:
        return FigureTable(("figure", *report.modes), [row[:-1] for row in rows])
    rows.append(("prompts composed", *(f"{mode.reuse.get('composed', 0):,}" for mode in modes), ""))
    return FigureTable(("figure", *report.modes, f"{DIFFERENCE} [95 %] of pairs"), rows)


def recall_name(report: EvaluationReport) -> str:
    """What recall is called: over how many results it is."""
    return "recall" if report.asked.top_k is None else f"recall@{report.asked.top_k}"


def notes(report: EvaluationReport) -> Iterator[str]:
    """Yield what a reader has to know about the figures: modes that did not compose, and times that compare badly."""
    for name, mode in report.modes.items():
        if mode.fallbacks:
            counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(mode.fallbacks.items()))
            yield f"Why nothing was composed, in the mode {name}: {counts}."
    if report.differences and not report.asked.cleared:
        yield (
            "Exact prompts were asked second and found documents that composed ones had computed, so their times are "
            "too good. --clear-cache compares times."
        )


def _metrics(report: EvaluationReport) -> Iterator[tuple[str, str]]:
    """Yield the metrics that any mode has, in a fixed order."""
    for metric, name in ({"recall": recall_name(report)} | _NAMES).items():
        if any(metric in mode.scores for mode in report.modes.values()):
            yield metric, name


def _scored(score: Mean | None, *, compared: bool) -> str:
    if score is None:
        return "-"
    # Beside a difference, which has its own interval, the table would be too wide.
    interval = "" if compared else f" [{score.low:.3f}, {score.high:.3f}] of {score.questions:,}"
    return f"{score.value:.3f}{interval}"


def _difference(report: EvaluationReport, metric: str, form: str, unit: str = "") -> str:
    found = report.differences.get(metric)
    if found is None:
        return "-"
    return f"{found.value:+{form}}{unit} [{found.low:+{form}}, {found.high:+{form}}] of {found.questions:,}"


def _time(times: Times | None, part: str) -> str:
    return "-" if times is None else f"{getattr(times, part):,.0f} ms"


def _share(mode: ModeSummary, part: str) -> str:
    return "-" if mode.tokens is None else f"{getattr(mode.tokens, part):.1%}"


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
