"""Percentiles and confidence intervals of measured values."""

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` percent of ``values`` lie, linearly interpolated.

    Needs at least one value.
    """
    return float(np.percentile(np.asarray(values, dtype=np.float64), share))


_RESAMPLES = 10_000
_DRAWS_AT_ONCE = 1_000_000


def bootstrap_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean: percentiles of means of resampled values (Efron, 1979).

    It assumes independent values and needs at least one. Equal seeds give equal intervals.
    """
    return grouped_bootstrap_interval([[value] for value in values], seed)


def grouped_bootstrap_interval(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of all values, which depend on each other within a group.

    Whole groups are resampled. It assumes independent groups and needs at least one.
    """
    sums = np.asarray([sum(group) for group in groups], dtype=np.float64)
    counts = np.asarray([len(group) for group in groups])
    draws = np.random.default_rng(seed)
    means: list[float] = []
    while len(means) < _RESAMPLES:
        # Many at once, which does not change what is drawn.
        at_once = min(_RESAMPLES - len(means), max(1, _DRAWS_AT_ONCE // len(groups)))
        drawn = draws.integers(len(groups), size=(at_once, len(groups)))
        means += (sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)).tolist()
    return percentile(means, 2.5), percentile(means, 97.5)
