"""The report of a run of chaos."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from loadtest.chaos.judging import Fate, KillReport
from loadtest.chaos.run import Chaos
from loadtest.chaos.settings import ChaosSettings, Engine
from loadtest.reporting.markdown import table
from loadtest.reporting.run_facts import Machine, machine
from loadtest.reporting.summary import Spread

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
    """``results.json``. Times are seconds; a kill's ``at`` counts from the load's begin.

    ``recoveries`` spreads the recovery times by what was killed. ``drained_s`` after the load's end the controller had
    nothing under way any more; None: it still had.
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


def write_report(chaos: Chaos, settings: ChaosSettings, folder: Path) -> None:
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
        f"{sum(report.fates.values())} queries at {settings.rate:g} a second in {report.seconds:.0f} s, "
        f"{len(report.kills)} kills, **on {engine}**, ingress `{settings.ingress}`, seed {settings.seed}, "
        f"{'the next kill during a recovery' if settings.overlapping else 'one kill at a time'}. "
        f"When the load had ended, the controller had nothing under way {drained}.",
        table(["requests", "count"], [[fate, str(report.fates[fate])] for fate in Fate if fate in report.fates]),
        "## Kills",
        "Times in seconds. Requests are those that were under way, or sent, before the stack had recovered from one. "
        "Cut are those whose connection was held by the process that was killed, or by nobody until it was back.",
        table(
            ["at", "killed", "pid", "by", "recovered after", *(fate for fate in Fate), "why not completed"],
            [_row(kill) for kill in report.kills],
        ),
        "## Recovery times",
        "Until a successor was there, `/readyz` said 200 with nothing degraded, all instances took requests, and a "
        "query that was asked after the kill was answered, three times in a row.",
        table(
            ["killed", "times", "p50", "max", "mean"],
            [
                [name, str(spread.count), f"{spread.p50:.1f}", f"{spread.max:.1f}", f"{spread.mean:.1f}"]
                for name, spread in report.recoveries.items()
                if spread is not None
            ],
        ),
        "![Requests by how they ended, each second](chaos.png)",
        f"Machine of the stack and of the load: {report.machine.processor}, {report.machine.cores} cores.",
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


def _draw(chaos: Chaos, file: Path) -> None:
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
    axes.set_xlabel("seconds; gray: until recovered")
    axes.set_ylabel("requests that ended, each second")
    axes.set_xlim(0, edges[-1])
    figure.savefig(file, dpi=120)
