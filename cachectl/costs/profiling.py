"""Measures what prefills cost on an engine."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Protocol

from cachectl.costs.cost_grid import CostGrid, check_axis
from protocol.errors import ConfigError, InvalidRequest
from protocol.generation import PrefillCost


class PrefillProbe(Protocol):
    """The part of an engine that can be profiled. It measures one prefill at a time."""

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill on arbitrary tokens. Raises InvalidRequest if both together exceed the context."""


async def profile(
    engine: PrefillProbe,
    cached: Sequence[int],
    new: Sequence[int],
    repeats: int,
    progress: Callable[[int, int], None],
) -> CostGrid:
    """Measure the grid of an engine that is otherwise idle. Each point is the least of ``repeats`` probes: noise adds.

    Pairs are probed one at a time, shorter prompts first. Every pair is probed once before any is probed again, so a
    passing disturbance spoils few probes of many points and not all probes of one. At the first prompt that the engine
    refuses as too long, that pair and all longer ones are given up. Their points continue the differences of their
    measured neighbours: no request can reach them, but the cells that end there need a corner. A length that is refused
    even in its shortest pair is left out of the grid.

    Times that fall with more tokens are noise. Each time becomes the mean of two bounds: the greatest time for no
    more tokens of either kind, and the least time for no fewer. This is the isotonic regression in the maximum norm: no
    other repair has a smaller greatest change, and times that never fall stay unchanged.

    ``progress`` is called after each probe with the number of probes done and to do; the latter shrinks when pairs are
    given up. Cancelling the call cancels the running probe and leaves nothing behind.

    Raises ConfigError for bad axes as ``CostGrid`` does, for ``new`` that begins at 0, for no repeats, and if fewer
    than two lengths of a kind fit the context. Also raises what the engine raises.
    """
    check_axis("cached", cached)
    check_axis("new", new)
    if new[0] == 0:
        raise ConfigError("a prefill of 0 new tokens cannot be measured; begin at 1 or more", "new")
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1, not {repeats}", "repeats")
    pairs = sorted(product(cached, new), key=sum)
    times: dict[tuple[int, int], list[float]] = {}
    done = 0
    for pair in pairs:
        try:
            cost = await engine.probe_prefill(*pair)
        except InvalidRequest as refusal:
            if min(len({lengths[i] for lengths in times}) for i in range(2)) < 2:
                tokens = f"{pair[0]} cached and {pair[1]} new tokens"
                raise ConfigError(f"too few lengths fit the engine, which refuses {tokens}: {refusal}") from refusal
            progress(done, repeats * len(times))
            break
        times[pair] = [cost.seconds]
        done += 1
        progress(done, repeats * len(pairs))
    for _ in range(repeats - 1):
        for pair, measured in times.items():
            measured.append((await engine.probe_prefill(*pair)).seconds)
            done += 1
            progress(done, repeats * len(times))
    return _completed(_isotonic({pair: min(measured) for pair, measured in times.items()}))


def _isotonic(times: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Times that never fall with more tokens: the means of the least rising bounds above and below."""
    return {
        (cached, new): (
            max(time for (fewer, less), time in times.items() if fewer <= cached and less <= new)
            + min(time for (more, longer), time in times.items() if more >= cached and longer >= new)
        )
        / 2
        for cached, new in times
    }


def _completed(times: Mapping[tuple[int, int], float]) -> CostGrid:
    """The grid over times. Those of the longest prompts may be missing."""
    cached = sorted({pair[0] for pair in times})
    new = sorted({pair[1] for pair in times})
    table: list[list[float]] = []
    for i, row in enumerate(cached):
        table.append([])
        for j, column in enumerate(new):
            time = times.get((row, column))
            if time is None:
                # The first row and column are complete: each length was measured in its shortest pair.
                beside, below, before = table[i][j - 1], table[i - 1][j], table[i - 1][j - 1]
                time = max(beside, below + (beside - before))
            table[i].append(time)
    return CostGrid(cached, new, table)


# A shorter prompt costs as much as the pass itself.
_SHORTEST_PROBE = 32
# Engines cache whole blocks. A cached length that is a multiple of the usual block is cached as a whole.
_BLOCK_TOKENS = 16
# Five thousand tokens in all, including the cached ones, which are computed first: five seconds at 1 ms per token.
_QUICK_CACHED = (0, 1024)
_QUICK_NEW = (_SHORTEST_PROBE, 256, 768)


def quick_axes(max_model_len: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A few cached and new tokens to profile a model at, those that fit the context; at least two on each axis.

    Raises ConfigError for a context too short to profile.
    """
    if max_model_len <= 2 * _SHORTEST_PROBE:
        raise ConfigError(f"a context of {max_model_len} tokens is too short to profile", "max_model_len")
    longest = max_model_len - 1
    most_cached = (longest - _SHORTEST_PROBE) // _BLOCK_TOKENS * _BLOCK_TOKENS
    return _clipped(_QUICK_CACHED, most_cached), _clipped(_QUICK_NEW, longest)


def _clipped(points: Sequence[int], last: int) -> tuple[int, ...]:
    fitting = [point for point in points if point <= last]
    return tuple(fitting) if len(fitting) > 1 else (points[0], last)
