"""Order statistics of measured values."""

from collections.abc import Sequence

import numpy as np


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` percent of ``values`` lie, linearly interpolated. Needs at least one value."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), share))
