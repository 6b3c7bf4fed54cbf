"""The lengths at which an engine is profiled."""

import math
from collections.abc import Sequence

from protocol.errors import ConfigError

# A shorter prompt costs as much as the pass itself.
_SHORTEST_PROBE = 32
# Engines cache whole blocks. A cached length that is a multiple of the usual block is cached as a whole.
_BLOCK_TOKENS = 16
# Five thousand tokens in all, including the cached ones, which are computed first: five seconds at 1 ms per token.
_QUICK_CACHED = (0, 1024)
_QUICK_NEW = (_SHORTEST_PROBE, 256, 768)


def default_axes(max_model_len: int, ratio: float = 2.0) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The cached and new tokens to profile a model at: geometric points up to the longest prompt it can answer.

    ``max_model_len`` counts prompt and answer. Each point is ``ratio`` times the one before, rounded to whole blocks of
    KV. Some pairs exceed the context together; ``profile`` leaves these out. Raises ConfigError for a context too short
    to profile, and for a ratio that does not exceed 1.
    """
    if max_model_len <= 2 * _SHORTEST_PROBE:
        raise ConfigError(f"a context of {max_model_len} tokens is too short to profile", "max_model_len")
    if not ratio > 1:
        raise ConfigError(f"the ratio between points must exceed 1, not be {ratio}", "ratio")
    longest = max_model_len - 1
    most_cached = (longest - _SHORTEST_PROBE) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return (0, *_geometric(_SHORTEST_PROBE, most_cached, ratio)), _geometric(_SHORTEST_PROBE, longest, ratio)


def quick_axes(max_model_len: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A few cached and new tokens to profile a model at, those that fit the context; at least two on each axis.

    Raises ConfigError for a context too short to profile.
    """
    cached, new = default_axes(max_model_len)
    return _clipped(_QUICK_CACHED, cached[-1]), _clipped(_QUICK_NEW, new[-1])


def _clipped(points: Sequence[int], last: int) -> tuple[int, ...]:
    fitting = [point for point in points if point <= last]
    return tuple(fitting) if len(fitting) > 1 else (points[0], last)


def _geometric(first: int, last: int, ratio: float) -> tuple[int, ...]:
    points = {first, last}
    point = first * ratio
    # The last two points differ by a factor of at least the square root of the ratio, so the last gap is no sliver.
    while point * math.sqrt(ratio) <= last:
        points.add(round(point / _BLOCK_TOKENS) * _BLOCK_TOKENS)
        point *= ratio
    return tuple(sorted(points))
