"""The report of a chaos run."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from loadtest.reporting.markdown_table import table
from loadtest.reporting.run_facts import Machine, machine
from loadtest.reporting.summary import Spread
from ragtree_lab.chaos.chaos_run import ChaosResult
from ragtree_lab.chaos.recovery import STEADY_CHECKS
from ragtree_lab.chaos.request_verdicts import Fate, KillReport
from ragtree_lab.chaos.settings import ChaosSettings, Engine

_COLOURS = {
    Fate.COMPLETED: "tab:green",
    Fate.REFUSED: "tab:orange",
    Fate.FAILED: "tab:red",
    Fate.CUT: "tab:purple",
    Fate.WRONG: "black",
    Fate.BROKEN: "tab:brown",
    Fate.UNSENT: "tab:gray",
}


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``results.json``. Times are in seconds. A kill's ``at`` counts from the start of the load.

    ``recoveries`` has the distribution of recovery times by kind. ``drained_s`` is how long after the load's end the
    controller had no queries left; None if it still had some.
    """

    passed: bool
    problems: list[str]
    settings: ChaosSettings
    machine: Machine
    seconds: float
    fates: dict[Fate, int]
    kills: list[KillReport]
    recoveries: dict[str, Spread | None]
    drained_s: float | None


def write_report(chaos: ChaosResult, settings: ChaosSettings, folder: Path) -> None:
    """Write ``results.json``, ``chaos.png`` and ``report.md``."""
    report = ChaosReport(
        passed=not chaos.problems,
        problems=chaos.problems,
        settings=settings,
        machine=machine(),
        seconds=chaos.seconds,
        fates=dict(Counter(each.fate for each in chaos.judged)),
        kills=chaos.kills,
        recoveries=_recoveries(chaos.kills),
        drained_s=chaos.drained_s,
    )
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    _draw(chaos, folder / "chaos.png")
    (folder / "report.md").write_text(_render(report), encoding="utf-8")


def _render(report: ChaosReport) -> str:
    settings = report.settings
    fake = settings.engine is Engine.FAKE
    engine = "the fake engine, not a model" if fake else "vLLM"
    drained = "never" if report.drained_s is None else f"after {report.drained_s:.1f} s"
    parts = [
        f"# Chaos: {'passed' if report.passed else 'failed'}",
        *(["\n".join(f"- {problem}" for problem in report.problems)] if report.problems else []),
        f"{sum(report.fates.values())} queries at {settings.rate:g} per second in {report.seconds:.0f} s, "
        f"{len(report.kills)} kills, **on {engine}**, ingress `{settings.ingress}`, seed {settings.seed}, "
        f"{'kills during recoveries' if settings.overlapping else 'one kill at a time'}. "
        f"After the end of the load, the controller had no queries left {drained}.",
        table(["requests", "count"], [[fate, str(report.fates[fate])] for fate in Fate if fate in report.fates]),
        "## Kills",
        "Times in seconds. Each row counts the requests that overlapped the recovery and its checks. Cut requests lost "
        "their connection with the killed process, or found none until it was back.",
        table(
            ["at", "killed", "pid", "signal", "recovered after", *(fate for fate in Fate), "reasons"],
            [_row(kill) for kill in report.kills],
        ),
        "## Recovery times",
        "Until a successor ran, `/readyz` returned 200 with nothing degraded, all instances accepted requests, and a "
        f"query sent after the kill was answered: the first of {STEADY_CHECKS} checks in a row.",
        table(
            ["killed", "count", "p50", "max", "mean"],
            [
                [name, str(spread.count), f"{spread.p50:.1f}", f"{spread.max:.1f}", f"{spread.mean:.1f}"]
                for name, spread in report.recoveries.items()
                if spread is not None
            ],
        ),
        "![Requests per second by fate](chaos.png)",
        f"Machine of the stack and the load test: {report.machine.processor}, {report.machine.cores} cores.",
    ]
    return "\n\n".join(parts) + "\n"


def _row(kill: KillReport) -> list[str]:
    recovered = "never" if kill.recovery_s is None else f"{kill.recovery_s:.1f}"
    fates = [str(kill.fates.get(fate, 0)) for fate in Fate]
    return [f"{kill.at:.1f}", kill.victim, str(kill.pid), kill.signal, recovered, *fates, _reasons(kill.reasons)]


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _recoveries(kills: Sequence[KillReport]) -> dict[str, Spread | None]:
    names = dict.fromkeys(kill.victim for kill in kills)
    times = {name: [k.recovery_s for k in kills if k.victim is name and k.recovery_s is not None] for name in names}
    return {name.value: Spread.of(those) for name, those in times.items()}


def _draw(chaos: ChaosResult, file: Path) -> None:
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.add_subplot()
    edges = [float(second) for second in range(math.ceil(max(chaos.seconds, 1.0)) + 1)]
    there = [fate for fate in Fate if any(each.fate is fate for each in chaos.judged)]
    ends = [[each.record.ended or each.record.at for each in chaos.judged if each.fate is fate] for fate in there]
    if there:
        axes.hist(ends, edges, stacked=True, label=list(there), color=[_COLOURS[fate] for fate in there])
        axes.legend(fontsize=7)
    for kill in chaos.kills:
        axes.axvline(kill.at, color="black", linestyle=":")
        if kill.recovery_s is not None:
            axes.axvspan(kill.at, kill.at + kill.recovery_s, color="tab:gray", alpha=0.2, linewidth=0)
        axes.annotate(
            kill.victim, (kill.at, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right", fontsize=7
        )
    axes.set_xlabel("seconds; gray: recovery")
    axes.set_ylabel("ended requests per second")
    axes.set_xlim(0, edges[-1])
    figure.savefig(file, dpi=120)
