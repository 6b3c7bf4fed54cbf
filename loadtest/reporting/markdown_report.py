"""Render ``report.md``."""

from collections.abc import Iterable

import msgspec

from loadtest.reporting.markdown_table import table
from loadtest.reporting.plots import PLOTS
from loadtest.reporting.request_records import Outcome
from loadtest.reporting.results import Results
from loadtest.reporting.run_facts import RunFacts
from loadtest.reporting.summary import Spread, Summary, WriteSummary

_LATE_S = 0.05
_COUNTS = ("due", "answered", "refused", "failed")


def render(results: Results) -> str:
    """Return the report's text."""
    parts = [
        f"# Load test of {results.run.url}",
        _overview(results),
        "## Latencies",
        _latencies(results.total),
        *(["## By step of the schedule", _steps(results)] if len(results.steps) > 1 else []),
        "## Outcomes",
        _outcomes(results.total),
        *(["## Documents written during the run", _writes(results)] if results.writes else []),
        "## Over time",
        *(f"![{title}]({file})" for file, title in PLOTS.items()),
        "## Settings",
        _settings(results.run),
    ]
    return "\n\n".join(parts) + "\n"


def _overview(results: Results) -> str:
    total, settings = results.total, results.run.settings
    lines = [
        f"{total.arrivals} requests were due in {results.run.seconds:g} s. The last ended after {total.seconds:.1f} s.",
        f"- answered: {total.outcomes.get(Outcome.ANSWERED, 0)}, {total.answered_per_s:.2f} per second, "
        f"{total.output_tokens_per_s:.1f} tokens per second",
        f"- good (first token within {settings.slo_ttft:g} s, mean gap between tokens {settings.slo_itl:g} s): "
        f"{total.good}, {total.good_per_s:.2f} per second, {_share(total.good_share)} of the requests",
        f"- refused: {sum(total.refusals.values())}, failed: {sum(total.errors.values())}",
        f"- hit rate (prompt tokens not computed): {_share(total.hit_rate)}",
    ]
    text = lines[0] + "\n\n" + "\n".join(lines[1:])
    missed = total.outcomes.get(Outcome.MISSED, 0)
    if missed:
        text += f"\n\n**{missed} requests were never sent**: {settings.max_open} streams were open (`--max-open`)."
    if total.late is not None and total.late.p99 > _LATE_S:
        text += (
            f"\n\n**The load test itself was late**: 1 % of the requests were sent {total.late.p99 * 1000:.0f} ms or "
            "more after they were due, which their latencies include. It needs more processor time."
        )
    return text


def _latencies(total: Summary) -> str:
    rows = {
        "TTFR: documents final": total.ttfr,
        "TTFT: first text": total.ttft,
        "ITL: between pieces of text": total.itl,
        "E2E: terminal event": total.e2e,
        "sent after it was due": total.late,
    }
    cells = [[name, *_milliseconds(spread)] for name, spread in rows.items()]
    text = "Answered requests, in milliseconds. All but ITL count from when a request was due, not sent.\n\n"
    return text + table(["", "p50", "p90", "p95", "p99", "max", "mean", "count"], cells)


def _steps(results: Results) -> str:
    cells = []
    for part in results.steps:
        summary = part.summary
        cells.append(
            [
                part.step.schedule,
                str(summary.arrivals),
                f"{summary.outcomes.get(Outcome.ANSWERED, 0)}",
                str(sum(summary.refusals.values())),
                str(sum(summary.errors.values())),
                *_milliseconds(summary.ttft)[:4],
                *_milliseconds(summary.itl)[:1],
                _share(summary.good_share),
                _share(summary.hit_rate),
            ]
        )
    head = ["step", *_COUNTS, "TTFT p50", "p90", "p95", "p99", "ITL p50", "good", "hit rate"]
    return table(head, cells)


def _outcomes(total: Summary) -> str:
    rows = [[outcome.value, str(total.outcomes[outcome])] for outcome in Outcome if outcome in total.outcomes]
    return "\n\n".join([table(["outcome", "requests"], rows), *_reasons(total)])


def _writes(results: Results) -> str:
    head = ["", *Outcome, "p50", "p90", "p95", "p99", "max", "mean", "count"]
    cells = [
        [action.value, *(str(writes.outcomes.get(outcome, 0)) for outcome in Outcome), *_milliseconds(writes.seconds)]
        for action, writes in results.writes.items()
    ]
    return "\n\n".join([table(head, cells), *(text for writes in results.writes.values() for text in _reasons(writes))])


def _reasons(summary: Summary | WriteSummary) -> Iterable[str]:
    for title, counts in (("refusal", summary.refusals), ("error", summary.errors)):
        if counts:
            yield table([title, "count"], [[reason, str(count)] for reason, count in counts.items()])


def _settings(run: RunFacts) -> str:
    machine = run.machine
    rows = [
        ["command", f"`{run.command}`"],
        ["started", run.started_at],
        ["model", run.model],
        ["collection", run.collection or "the stack's default"],
        ["machine of the load test", f"{machine.processor}, {machine.cores} cores, {machine.memory / 2**30:.1f} GiB"],
        ["system", f"{machine.system}, Python {machine.python}"],
        *([f"`{name}`", str(value)] for name, value in msgspec.structs.asdict(run.settings).items()),
    ]
    return table(["setting", "value"], rows)


def _milliseconds(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 6 + ["0"]
    times = (spread.p50, spread.p90, spread.p95, spread.p99, spread.max, spread.mean)
    return [*(f"{value * 1000:.1f}" for value in times), str(spread.count)]


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
