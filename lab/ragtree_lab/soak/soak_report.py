"""The verdict of a soak, and its report."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from loadtest.reporting.markdown_table import table
from loadtest.reporting.request_records import Outcome
from loadtest.reporting.results import Results
from loadtest.reporting.summary import Summary
from ragtree_lab.soak.memory import Bound, Sample, Trend, by_process

_MIB = 2**20
_LABELLED = 8


class SoakVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a soak. It passed if ``problems`` is empty. ``rate`` is per second, ``warm_up`` in seconds."""

    rate: float
    warm_up: float
    bound: Bound
    problems: list[str]
    queries: Summary
    memory: list[Trend]

    @property
    def passed(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def request_problems(results: Results) -> list[str]:
    """Return the problems with the requests of a run. Refusals are not problems."""
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


def memory_problems(trends: Sequence[Trend], bound: Bound) -> list[str]:
    """Return the processes whose memory was not flat."""
    if not trends:
        return ["no process lived long enough for a memory trend"]
    return [
        f"{trend.name} (process {trend.pid}) grew by {trend.growth / _MIB:.1f} MiB in {trend.seconds:.0f} s"
        for trend in trends
        if not bound.holds(trend)
    ]


def write_soak(soak: SoakVerdict, samples: Sequence[Sample], folder: Path) -> None:
    """Write ``soak.json``, ``memory.png`` and ``soak.md``."""
    (folder / "soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(soak), indent=2) + b"\n")
    _draw(soak, samples, folder / "memory.png")
    (folder / "soak.md").write_text(_render(soak), encoding="utf-8")


def _render(soak: SoakVerdict) -> str:
    total = soak.queries
    problems = "\n".join(f"- {problem}" for problem in soak.problems)
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
        *([problems] if problems else []),
        f"{total.arrivals} queries at {soak.rate:.2f} per second in {total.seconds:.0f} s: "
        f"{total.outcomes.get(Outcome.ANSWERED, 0)} answered, {sum(total.refusals.values())} refused, "
        f"{sum(total.errors.values())} failed. The load test's own report is in `load/`.",
        "## Memory",
        f"MiB that no other process shares, from a least-squares line after the first {soak.warm_up:.0f} s. Growth "
        f"of up to {soak.bound.share:.0%}, or {soak.bound.bytes / _MIB:g} MiB if that is more, counts as flat.",
        table(["process", "start", "end", "growth", "growth per hour"], rows),
        "![Memory of each process over time](memory.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _draw(soak: SoakVerdict, samples: Sequence[Sample], file: Path) -> None:
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    processes = sorted(by_process(samples).values(), key=lambda points: -max(point.bytes for point in points))
    for rank, points in enumerate(processes):
        label = f"{points[0].name} ({points[0].pid})" if rank < _LABELLED else None
        axes.plot([point.at for point in points], [point.bytes / _MIB for point in points], label=label)
    axes.axvline(soak.warm_up, color="tab:gray", linestyle=":")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB, not shared")
    axes.set_ylim(bottom=0)
    axes.set_title("Memory of each process over time")
    axes.grid(alpha=0.3)
    if processes:
        axes.legend(fontsize=7)
    figure.savefig(file, dpi=120)
