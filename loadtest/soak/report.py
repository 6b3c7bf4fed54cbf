"""The verdict of a soak, and its report."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from loadtest.reporting.markdown import table
from loadtest.reporting.records import Outcome
from loadtest.reporting.results import Results
from loadtest.reporting.summary import Summary
from loadtest.soak.memory import Bound, Sample, Trend, by_process

_MIB = 2**20
_NAMED = 8


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a soak: ``problems`` is empty when it has passed. ``rate`` is a second, ``warm_up`` seconds."""

    rate: float
    warm_up: float
    bound: Bound
    problems: list[str]
    queries: Summary
    memory: list[Trend]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def problems_of(results: Results) -> list[str]:
    """What was wrong with the requests of a run; refusals are nothing wrong."""
    total = results.total
    problems = [f"{count} queries: {reason}" for reason, count in total.errors.items()]
    problems += [
        f"{count} of {action.value}: {reason}"
        for action, writes in results.writes.items()
        for reason, count in writes.errors.items()
    ]
    if not total.outcomes.get(Outcome.ANSWERED):
        problems.append("no query was answered")
    if missed := total.outcomes.get(Outcome.MISSED):
        problems.append(f"{missed} queries were never sent")
    return problems


def problems_of_memory(trends: Sequence[Trend], bound: Bound) -> list[str]:
    """Which processes were not flat."""
    if not trends:
        return ["no process was there for long enough to say how its memory goes"]
    return [
        f"{trend.name} (process {trend.pid}) grew by {trend.growth / _MIB:.1f} MiB in {trend.seconds:.0f} s"
        for trend in trends
        if not bound.holds(trend)
    ]


def write_soak(soak: Soak, samples: Sequence[Sample], folder: Path) -> None:
    """Write ``soak.json``, ``memory.png`` and ``soak.md``."""
    (folder / "soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(soak), indent=2) + b"\n")
    _draw(soak, samples, folder / "memory.png")
    (folder / "soak.md").write_text(_render(soak), encoding="utf-8")


def _render(soak: Soak) -> str:
    total = soak.queries
    found = "\n".join(f"- {problem}" for problem in soak.problems)
    rows = [
        [
            f"{trend.name} ({trend.pid})",
            f"{trend.first / _MIB:.1f}",
            f"{trend.last / _MIB:.1f}",
            f"{trend.growth / _MIB:+.1f}",
            f"{trend.growth / trend.seconds * 3600 / _MIB:+.1f}",
        ]
        for trend in soak.memory
    ]
    parts = [
        f"# Soak: {'passed' if soak.passed else 'failed'}",
        *([found] if found else []),
        f"{total.arrivals} queries at {soak.rate:.2f} a second in {total.seconds:.0f} s; "
        f"{total.outcomes.get(Outcome.ANSWERED, 0)} answered, {sum(total.refusals.values())} refused, "
        f"{sum(total.errors.values())} failed. The load test's own report is in `load/`.",
        "## Memory",
        f"MiB that no other process shares, on the line of least squares after the first {soak.warm_up:.0f} s. Growth "
        f"of up to {soak.bound.share:.0%}, or {soak.bound.bytes / _MIB:g} MiB if that is more, is flat.",
        table(["process", "at the begin", "at the end", "growth", "an hour"], rows),
        "![Memory of each process over time](memory.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _draw(soak: Soak, samples: Sequence[Sample], file: Path) -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    processes = sorted(by_process(samples).values(), key=lambda points: -max(point.bytes for point in points))
    for place, points in enumerate(processes):
        label = f"{points[0].name} ({points[0].pid})" if place < _NAMED else None
        axes.plot([point.at for point in points], [point.bytes / _MIB for point in points], label=label)
    axes.axvline(soak.warm_up, color="tab:gray", linestyle=":")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB of its own")
    axes.set_ylim(bottom=0)
    axes.set_title("Memory of each process over time")
    axes.grid(alpha=0.3)
    if processes:
        axes.legend(fontsize=7)
    figure.savefig(file, dpi=120)
