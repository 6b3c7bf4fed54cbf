"""Prefill times over cached and new tokens: measured on a grid of points, interpolated in between."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from protocol.errors import ConfigError, InvalidRequest


class PrefillGrid(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Prefill seconds over cached and new tokens: ``points[i][j]`` is T(cached[i], new[j]).

    Inside the grid, the time is bilinear between the four surrounding points, and exact at each. Outside:

    - No new tokens: T(c, 0) = 0, because no pass runs.
    - Fewer new tokens than the first point: on the line through the first two points. Where this line meets 0 tokens is
      the launch cost, at least 0, which even the smallest pass pays. The time falls towards it and not towards 0,
      because a line through the origin would make tiny prefills nearly free. A grid whose ``new`` begins at 0 states
      its launch cost itself.
    - Fewer cached tokens than the first point: the time at that point. It is an upper bound, because attending to fewer
      tokens costs no more.
    - More cached tokens than the last point: along the slope of the last cell, or level if that is negative. Prefill is
      linear in cached tokens.
    - More new tokens than the last point: as several prefills of that size, each after those before. Prefill is
      quadratic in new tokens, so a slope would be too low, and engines prefill long prompts in such steps.

    If the points never fall with more tokens, no time inside or outside does. If noise would break this outside, the
    slope or the launch cost of fewer tokens is used instead.

    Raises ConfigError unless both axes have two points or more, strictly increasing from 0 or above, and ``points``
    have a positive finite number for each pair.
    """

    cached: tuple[int, ...] = msgspec.field(name="cached_tokens")
    new: tuple[int, ...] = msgspec.field(name="new_tokens")
    points: tuple[tuple[float, ...], ...] = msgspec.field(name="seconds")

    def __post_init__(self) -> None:
        cached, new, points = self.cached, self.new, self.points
        check_axis("cached", cached)
        check_axis("new", new)
        if len(points) != len(cached) or any(len(row) != len(new) for row in points):
            raise ConfigError(f"a grid of {len(cached)} cached by {len(new)} new points needs a time for each pair")
        if not all(math.isfinite(time) and time > 0 for row in points for time in row):
            raise ConfigError("a prefill's seconds must be positive and finite")

    @cached_property
    def _cells(self) -> "_Cells":
        return _cells_of(self.cached, self.new, self.points)

    def seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """Seconds to prefill ``new_tokens`` after ``cached_tokens``. Raises InvalidRequest for negative tokens."""
        if new_tokens <= 0 or cached_tokens < 0:
            if cached_tokens < 0 or new_tokens < 0:
                raise InvalidRequest(f"tokens must not be negative: {cached_tokens} cached, {new_tokens} new")
            return 0.0
        longest = self.new[-1]
        if new_tokens <= longest:
            return self._interpolated(cached_tokens, new_tokens)
        steps = (new_tokens - 1) // longest
        behind = cached_tokens + steps * longest
        return self._in_steps(cached_tokens, steps) + self._interpolated(behind, new_tokens - steps * longest)

    def _in_steps(self, cached_tokens: int, steps: int) -> float:
        """Seconds of ``steps`` prefills of the most measured new tokens, each after those before."""
        longest = self.new[-1]
        rows, _, cells = self._cells
        total = 0.0
        while steps:
            row = bisect_right(rows, cached_tokens) - 1
            count = steps
            if row + 1 < len(rows):
                count = min(count, -(-(rows[row + 1] - cached_tokens) // longest))
            # Within a row, each takes as much longer than the one before.
            rise = cells[row][-1][1] * longest
            total += count * self._interpolated(cached_tokens, longest) + rise * count * (count - 1) / 2
            cached_tokens += count * longest
            steps -= count
        return total

    def _interpolated(self, cached_tokens: int, new_tokens: int) -> float:
        rows, columns, cells = self._cells
        row = bisect_right(rows, cached_tokens) - 1
        column = bisect_right(columns, new_tokens) - 1
        time, per_cached, per_new, per_pair = cells[row][column]
        cached_tokens -= rows[row]
        new_tokens -= columns[column]
        return time + per_cached * cached_tokens + (per_new + per_pair * cached_tokens) * new_tokens


class _Cells(NamedTuple):
    """Where cells begin, in cached and in new tokens, and each cell's time at that point, slopes and mixed slope."""

    rows: list[int]
    columns: list[int]
    cells: list[list[tuple[float, float, float, float]]]


def _cells_of(cached: Sequence[int], new: Sequence[int], points: Sequence[Sequence[float]]) -> _Cells:
    """The cells of a grid.

    They cover all numbers of cached tokens, and of new tokens up to the last point: the last cell of each row begins
    there.
    """
    rows, columns, table = list(cached), list(new), [list(row) for row in points]
    if columns[0] > 0:
        launches = [max(0.0, row[0] - (row[1] - row[0]) / (new[1] - new[0]) * new[0]) for row in table]
        for row, launch in zip(table, accumulate(launches, max), strict=True):
            row.insert(0, min(launch, row[0]))
        columns.insert(0, 0)
    if rows[0] > 0:
        table.insert(0, list(table[0]))
        rows.insert(0, 0)
    for row in table:
        row.append(row[-1])
    # One more point at the end of the cached axis, at the last cell's width, turns what lies beyond into cells. Slopes
    # that never fall from column to column keep the time from falling at any distance.
    rises = [max(0.0, last - before) for before, last in zip(table[-2], table[-1], strict=True)]
    if columns[0] < new[0]:
        # A launch cost is inferred, so it must not make a measured slope steeper.
        rises[0] = min(rises[:2])
    table.append([time + rise for time, rise in zip(table[-1], accumulate(rises, max), strict=True)])
    heights = [end - begin for begin, end in pairwise([*rows, 2 * rows[-1] - rows[-2]])]
    widths = [end - begin for begin, end in pairwise([*columns, 2 * columns[-1] - columns[-2]])]
    cells = [
        [
            (
                low,
                (high - low) / height,
                (low_next - low) / width,
                ((high_next - high) - (low_next - low)) / width / height,
            )
            for (low, low_next), (high, high_next), width in zip(pairwise(lower), pairwise(upper), widths, strict=True)
        ]
        for (lower, upper), height in zip(pairwise(table), heights, strict=True)
    ]
    return _Cells(rows, columns, cells)


def check_axis(name: str, points: Sequence[int]) -> None:
    """Raise ConfigError unless there are two points or more, strictly increasing from 0 or above."""
    if len(points) < 2:
        raise ConfigError(f"the {name} axis needs two points or more, not {len(points)}", name)
    if points[0] < 0:
        raise ConfigError(f"the {name} axis begins at {points[0]}, but must not be negative", name)
    if any(point >= after for point, after in pairwise(points)):
        raise ConfigError(f"the {name} axis must increase strictly", name)
