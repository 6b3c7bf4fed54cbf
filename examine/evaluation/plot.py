"""Draws an evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examine.evaluation.asking import Row
from examine.evaluation.evaluation import EvaluationReport
from examine.evaluation.summary import METRICS, ModeSummary, value


def draw(report: EvaluationReport, rows: Sequence[Row], file: Path) -> None:
    """Draw the distribution of TTFT, and the scores with their intervals, of every mode into a picture.

    The file's suffix decides the format. Raises OSError if it cannot be written.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, scores = figure.subplots(1, 2)
    ttft_ms = {
        name: sorted(filter(None, (value(row, "ttft_ms") for row in rows if row.mode == name))) for name in report.modes
    }
    _times(times, ttft_ms)
    _scores(scores, report.modes)
    figure.savefig(file, dpi=120)


def _times(axes: Axes, times: Mapping[str, Sequence[float]]) -> None:
    for name, values in times.items():
        if values:
            axes.ecdf([value / 1000 for value in values], label=name)
    axes.set_title("Time to first token")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of the answers that are not slower")
    axes.grid(alpha=0.3)
    if any(times.values()):
        axes.legend()


def _scores(axes: Axes, modes: Mapping[str, ModeSummary]) -> None:
    metrics = [metric for metric in METRICS if any(metric in mode.scores for mode in modes.values())]
    height = 0.8 / len(modes)
    for number, (name, mode) in enumerate(modes.items()):
        there = [(place, mode.scores[metric]) for place, metric in enumerate(metrics) if metric in mode.scores]
        axes.barh(
            [place + (number - (len(modes) - 1) / 2) * height for place, _ in there],
            [score.value for _, score in there],
            height,
            # A bootstrapped interval of few values may leave out their mean.
            xerr=(
                [max(0.0, score.value - score.low) for _, score in there],
                [max(0.0, score.high - score.value) for _, score in there],
            ),
            label=name,
        )
    axes.set_title("Scores and their 95 % intervals")
    axes.set_yticks(range(len(metrics)), [metric.replace("_", " ") for metric in metrics])
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
