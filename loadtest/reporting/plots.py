"""The plots of a report."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.reporting.request_records import Outcome, QueryRecord
from loadtest.reporting.summary import hit_rate

PLOTS = {
    "ttft.png": "Time to first token and arrivals per second over time",
    "ttft-cdf.png": "Distribution of the time to first token",
    "hit-rate.png": "Hit rate over time",
    "open-streams.png": "Open streams over time",
}
_BINS = 60


def draw_all(queries: Sequence[QueryRecord], seconds: float, folder: Path) -> None:
    """Draw all plots into the run's folder."""
    answered = [query for query in queries if query.outcome is Outcome.ANSWERED]
    drawings = (_ttft, _ttft_cdf, _hit_rate, _open_streams)
    shown = (queries, answered, answered, queries)
    for (file, title), draw, those in zip(PLOTS.items(), drawings, shown, strict=True):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, those, max(seconds, 1.0))
        axes.set_title(title)
        axes.grid(alpha=0.3)
        figure.savefig(folder / file, dpi=120)


def _ttft(axes: Axes, queries: Sequence[QueryRecord], seconds: float) -> None:
    times = [(query.at, query.ttft) for query in queries if query.ttft is not None]
    axes.scatter([at for at, _ in times], [ttft for _, ttft in times], s=8, color="tab:blue")
    axes.set_ylabel("time to first token, seconds", color="tab:blue")
    axes.set_ylim(bottom=0)
    _over_time(axes, seconds)
    edges = _edges(seconds)
    counts, _ = np.histogram([query.at for query in queries], edges)
    rates = axes.twinx()
    rates.stairs(counts / np.diff(edges), edges, color="tab:gray")
    rates.set_ylabel("arrivals per second", color="tab:gray")
    rates.set_ylim(bottom=0)


def _ttft_cdf(axes: Axes, queries: Sequence[QueryRecord], _seconds: float) -> None:
    times = sorted(query.ttft for query in queries if query.ttft is not None)
    if times:
        axes.ecdf(times)
    axes.set_xlabel("time to first token, seconds")
    axes.set_ylabel("share of answers")
    axes.set_xlim(left=0)


def _hit_rate(axes: Axes, queries: Sequence[QueryRecord], seconds: float) -> None:
    edges = _edges(seconds)
    within = [(begin, [query for query in queries if begin <= query.at < end]) for begin, end in pairwise(edges)]
    rates = [(begin, rate) for begin, those in within if (rate := hit_rate(those)) is not None]
    middle = (edges[1] - edges[0]) / 2
    axes.plot([begin + middle for begin, _ in rates], [rate for _, rate in rates], marker="o", markersize=3)
    axes.set_ylabel("share of prompt tokens not computed")
    axes.set_ylim(0, 1)
    _over_time(axes, seconds)


def _open_streams(axes: Axes, queries: Sequence[QueryRecord], seconds: float) -> None:
    spans = [(query.sent, query.ended) for query in queries if query.sent is not None and query.ended is not None]
    changes = sorted([(sent, 1) for sent, _ in spans] + [(ended, -1) for _, ended in spans])
    times = [0.0, *(at for at, _ in changes)]
    axes.step(times, list(accumulate((change for _, change in changes), initial=0)), where="post")
    axes.set_ylabel("open streams")
    axes.set_ylim(bottom=0)
    _over_time(axes, seconds)


def _over_time(axes: Axes, seconds: float) -> None:
    axes.set_xlabel("seconds")
    axes.set_xlim(0, seconds)


def _edges(seconds: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.linspace(0.0, seconds, min(_BINS, max(2, int(seconds))) + 1)
