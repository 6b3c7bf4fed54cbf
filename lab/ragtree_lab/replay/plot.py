"""Draws the results of a replay."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ragtree_lab.measuring.phases import Measured
from ragtree_lab.replay.results import ReplayResult, SystemResult


def draw(result: ReplayResult, file: Path) -> None:
    """Draw TTFT by offered rate, and the origin of the prompts' tokens, of every system into a picture.

    The file's suffix decides the format. Raises OSError if it cannot be written.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    ttft, tokens = figure.subplots(1, 2, width_ratios=(3, 2))
    _ttft_by_rate(ttft, result.systems)
    _tokens_by_tier(tokens, result.systems)
    figure.savefig(file, dpi=120)


def _ttft_by_rate(axes: Axes, systems: Mapping[str, SystemResult]) -> None:
    for name, system in systems.items():
        rates = [measured.rate or 0.0 for measured in system.loaded]
        times = [measured.mean_ttft_ms / 1000 for measured in system.loaded]
        (line,) = axes.plot([0.0, *rates], [system.unloaded.mean_ttft_ms / 1000, *times], label=name)
        for rate, seconds in zip(rates, times, strict=True):
            sustained = system.sustained_per_s is not None and rate <= system.sustained_per_s
            axes.plot(rate, seconds, marker="o", color=line.get_color(), fillstyle="full" if sustained else "none")
    axes.set_title("Time to first token by offered rate (hollow: not sustained)")
    axes.set_xlabel("offered requests per second; 0: one after another")
    axes.set_ylabel("mean, seconds")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()


def _tokens_by_tier(axes: Axes, systems: Mapping[str, SystemResult]) -> None:
    shares = {name: _shares(system) for name, system in systems.items()}
    ends = dict.fromkeys(shares, 0.0)
    for origin in dict.fromkeys(origin for each in shares.values() for origin in each if origin != "computed"):
        widths = [each[origin] for each in shares.values()]
        axes.barh(list(shares), widths, left=list(ends.values()), label=origin)
        ends = {name: ends[name] + each[origin] for name, each in shares.items()}
    axes.set_title("Prompt tokens found, by tier")
    axes.set_xlabel("share of prompt tokens")
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.legend()


def _shares(system: SystemResult) -> dict[str, float]:
    """The share of prompt tokens by origin, without load and at all rates."""
    measured: list[Measured] = [system.unloaded, *system.loaded]
    total = sum(sum(one.tokens.values()) for one in measured)
    return {origin: sum(one.tokens[origin] for one in measured) / total for origin in system.unloaded.tokens}
