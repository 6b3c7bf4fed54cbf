"""Draws the results of composed reuse."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examine.composing.rows import FULL, ComposeRow


def draw(rows: Sequence[ComposeRow], file: Path) -> None:
    """Draw score and divergence by the share that was computed again, a column for each task, a line for each method.

    The file's suffix decides the format. Raises OSError if it cannot be written.
    """
    tasks = list(dict.fromkeys(row.task for row in rows))
    figure = Figure(figsize=(1 + 3.2 * len(tasks), 6), layout="constrained")
    axes = figure.subplots(2, len(tasks), squeeze=False, sharex=True)
    for column, task in enumerate(tasks):
        own = [row for row in rows if row.task == task]
        _scores(axes[0][column], own, task)
        _divergences(axes[1][column], own)
    axes[0][0].set_ylabel("mean score")
    axes[1][0].set_ylabel("KL from full prefill, nats")
    # Methods without a share are points, which the legend of the first column has.
    handles, labels = axes[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)))
    figure.savefig(file, dpi=120)


def _scores(axes: Axes, rows: Sequence[ComposeRow], task: str) -> None:
    axes.axhline(rows[0].full_score, color="black", linewidth=1, linestyle="--", label="full prefill")
    for method, own in _by_method(rows):
        axes.plot([row.actual_share for row in own], [row.score for row in own], marker="o", label=method)
    axes.set_title(f"{task}, {rows[0].questions} questions")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _divergences(axes: Axes, rows: Sequence[ComposeRow]) -> None:
    for row in rows:
        if row.method == FULL:
            axes.axhline(row.kl, color="black", linewidth=1, linestyle="--", label="another full prefill")
    for method, own in _by_method(rows):
        axes.plot([row.actual_share for row in own], [row.kl for row in own], marker="o", label=method)
    axes.set_xlabel("share computed again")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _by_method(rows: Sequence[ComposeRow]) -> list[tuple[str, list[ComposeRow]]]:
    methods = dict.fromkeys(row.method for row in rows if row.method != FULL)
    return [
        (method, sorted((row for row in rows if row.method == method), key=lambda row: row.actual_share))
        for method in methods
    ]
