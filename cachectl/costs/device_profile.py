"""The prefill cost model: what computing tokens costs behind a cached prefix, and what loading their KV costs.

T(cached, new) is measured on a grid of points and interpolated in between. The shipped profile ``a10g-7b`` is not
measured but derived, for simulators, from what RAGCache (Jin et al. 2024, arXiv 2404.12457) publishes of a 7B model on
an A10G. Its times are those of the formula

    T(c, n) = launch + linear * n + attention * n * (c + n / 2)

at its grid points, rounded to microseconds: ``launch`` = 79.8 ms is what a pass costs before its first token (weights
read once, kernels launched, the engine's own step), ``linear`` = 213 us a token the matrix products, and
``attention`` = 8.6 ns each pair of a new token and one it attends to. A layer of width d costs 24 d^2 flop a token and
4 d a pair, which fixes attention / linear near 4e-5 for d = 4096; two published figures fix the rest:

    T(0, 4000)                  = 1.00 s       about a second for 4,000 new tokens
    T(0, 4032) / T(4000, 32)    = 11.5         32 tokens of question behind 4,000 cached, against computing all
    T(0, 4032) / (load + T(4000, 32)) = 3.9    the same, with the 4,000 loaded from host memory first

The last fixes load = 171 ms for 4,000 tokens of LLaMA-2-7B at 512 KiB each: 12.27 GB/s, 38 % of the 32 GB/s that
PCIe 4.0 x16 has on paper. The rate of the disk, 2 GB/s, is an assumption about an NVMe drive; RAGCache publishes none.
"""

import contextlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from importlib import resources
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol, Self
from uuid import uuid4

import msgspec

from protocol.errors import ConfigError, InvalidRequest
from protocol.tiers import Tier


class CostGrid:
    """Prefill seconds over cached and new tokens: ``seconds[i][j]`` is T(cached[i], new[j]).

    Inside the grid the time is bilinear between the four points around, and exact at each. Outside:

    - Nothing new takes no time: T(c, 0) = 0, as no pass is run.
    - Fewer new tokens than the first point: the line through the first two points, run down to 0 tokens, meets a launch
      cost there (at least 0), which even the smallest pass pays. Towards it the time falls, not towards 0: a line
      through the origin would promise that tiny prefills are nearly free. A grid whose ``new`` begins at 0 states its
      launch cost itself.
    - Fewer cached tokens than the first point: the time at that point. Less to attend to costs no more, so it is a
      bound.
    - Beyond a last point: along the slope of the last cell, which is never taken as negative. In cached tokens prefill
      is linear, so that is as good as the slope; in new tokens attention is quadratic, so it is too little for prompts
      much longer than any measured.

    If the points never fall with more tokens, neither does any time inside or outside. Where noise would break that
    outside, it is the slope or the launch cost of fewer tokens that continues in its place.

    Raises ConfigError unless both axes have two points or more, strictly increasing from 0 or above, and ``seconds``
    has a positive finite number for each pair. Immutable; equal grids have equal points.
    """

    def __init__(self, cached: Sequence[int], new: Sequence[int], seconds: Sequence[Sequence[float]]) -> None:
        check_axis("cached", cached)
        check_axis("new", new)
        if len(seconds) != len(cached) or any(len(row) != len(new) for row in seconds):
            raise ConfigError(f"a grid of {len(cached)} cached by {len(new)} new points needs a time for each pair")
        if not all(math.isfinite(time) and time > 0 for row in seconds for time in row):
            raise ConfigError("a prefill's seconds must be positive and finite")
        self._cached = tuple(cached)
        self._new = tuple(new)
        self._points = tuple(tuple(float(time) for time in row) for row in seconds)
        self._rows, self._columns, self._cells = _cells_of(self._cached, self._new, self._points)

    @property
    def cached(self) -> tuple[int, ...]:
        """Cached tokens at which it was measured."""
        return self._cached

    @property
    def new(self) -> tuple[int, ...]:
        """New tokens at which it was measured."""
        return self._new

    @property
    def points(self) -> tuple[tuple[float, ...], ...]:
        """Seconds as measured: a row for each of ``cached``, in it a time for each of ``new``."""
        return self._points

    def seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """Seconds to prefill ``new_tokens`` behind ``cached_tokens``. Raises InvalidRequest for negative tokens."""
        if new_tokens <= 0 or cached_tokens < 0:
            _check_tokens(cached_tokens, new_tokens)
            return 0.0
        row = bisect_right(self._rows, cached_tokens) - 1
        column = bisect_right(self._columns, new_tokens) - 1
        time, per_cached, per_new, per_pair = self._cells[row][column]
        cached_tokens -= self._rows[row]
        new_tokens -= self._columns[column]
        return time + per_cached * cached_tokens + (per_new + per_pair * cached_tokens) * new_tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CostGrid):
            return NotImplemented
        return (self._cached, self._new, self._points) == (other._cached, other._new, other._points)

    def __hash__(self) -> int:
        return hash((self._cached, self._new, self._points))

    def __repr__(self) -> str:
        return f"CostGrid(cached={self._cached}, new={self._new}, seconds={self._points})"


class Costs(Protocol):
    """What prefills and loads cost on an instance, in seconds."""

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """Seconds to prefill ``new_tokens`` behind ``cached_tokens``."""

    def load_seconds(self, tokens: int, tier: Tier) -> float:
        """Seconds until the KV of ``tokens`` in ``tier`` lies on the device."""


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What prefill and KV transfers cost on one kind of device with one model.

    ``source`` tells where the numbers come from. ``host_bytes_per_s`` is the rate from host memory to the device,
    ``disk_bytes_per_s`` that from disk to host memory, ``kv_bytes_per_token`` the KV of one token in all layers. Raises
    ConfigError where one of them is not positive.
    """

    name: str
    source: str
    host_bytes_per_s: float
    disk_bytes_per_s: float
    kv_bytes_per_token: int
    grid: CostGrid

    def __post_init__(self) -> None:
        for field in ("host_bytes_per_s", "disk_bytes_per_s", "kv_bytes_per_token"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field} must be positive and finite, not {value}", field)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The profile in a JSON file that ``save`` wrote, or a person. Raises ConfigError naming the file."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the device profile {path} cannot be read: {error.strerror}") from error
        return cls._decoded(content, str(path))

    @classmethod
    def shipped(cls, name: str) -> Self:
        """The profile that comes with RAGTree under this name. Raises ConfigError naming the file, and what there is.

        ``a10g-7b`` is the one of this module's docstring.
        """
        files = {file.name: file for file in resources.files("cachectl").joinpath("costs", "profiles").iterdir()}
        file = files.get(f"{name}.json")
        if file is None:
            known = ", ".join(sorted(file.removesuffix(".json") for file in files if file.endswith(".json")))
            raise ConfigError(f"there is no device profile {name}.json; shipped are: {known}")
        return cls._decoded(file.read_bytes(), file.name)

    def save(self, path: Path) -> None:
        """Write the profile in one step: a reader finds the old file or the new one. Raises OSError."""
        # In the same folder, or it could not be renamed; and not by tempfile, whose files nobody else may read.
        unfinished = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
        try:
            with unfinished.open("x", encoding="utf-8") as file:
                file.write(_readable(self))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def with_kv_bytes(self, kv_bytes_per_token: int) -> Self:
        """The profile of a model of the same size whose KV takes other room: 131072 for Mistral-7B, say.

        Prefill times stay as they are: models of one size differ there by percents, in KV by factors.
        """
        return msgspec.structs.replace(self, kv_bytes_per_token=kv_bytes_per_token)

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """Seconds to prefill ``new_tokens`` behind ``cached_tokens`` on the device: ``CostGrid.seconds``."""
        return self.grid.seconds(cached_tokens, new_tokens)

    def load_seconds(self, tokens: int, tier: Tier) -> float:
        """Seconds until the KV of ``tokens`` in ``tier`` lies on the device: bytes over rates, nothing else.

        What is on the device already takes none. From disk it goes through host memory, one copy after the other, so
        an engine that overlaps them is faster than this. Raises InvalidRequest for negative tokens.
        """
        if tokens < 0:
            raise InvalidRequest(f"tokens must not be negative, but {tokens} should be loaded")
        size = tokens * self.kv_bytes_per_token
        if tier == Tier.GPU:
            return 0.0
        if tier == Tier.HOST:
            return size / self.host_bytes_per_s
        return size / self.disk_bytes_per_s + size / self.host_bytes_per_s

    @classmethod
    def _decoded(cls, content: bytes, file: str) -> Self:
        try:
            return msgspec.json.decode(content, type=cls, dec_hook=_grid_decoded)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"the device profile {file} is broken: {error}") from error


def _cells_of(
    cached: Sequence[int], new: Sequence[int], points: Sequence[Sequence[float]]
) -> tuple[list[int], list[int], list[list[tuple[float, float, float, float]]]]:
    """Where cells begin in cached and new tokens, and each cell's time there, slopes and mixed slope.

    Cells begin at 0, and the last of a row or column has no end.
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
    # A point more at each end of an axis, as far on as the last cell is wide, makes cells of what lies beyond. Slopes
    # that never fall from row to row, or column to column, keep the time from falling however far one goes.
    rises = [max(0.0, row[-1] - row[-2]) for row in table]
    for row, rise in zip(table, accumulate(rises, max), strict=True):
        row.append(row[-1] + rise)
    rises = [max(0.0, last - before) for before, last in zip(table[-2], table[-1], strict=True)]
    if columns[0] < new[0]:
        # A launch cost is inferred, so it may not steepen what is measured.
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
    return rows, columns, cells


def check_axis(name: str, points: Sequence[int]) -> None:
    """Raises ConfigError unless there are two points or more, strictly increasing from 0 or above."""
    if len(points) < 2:
        raise ConfigError(f"the {name} axis needs two points or more, not {len(points)}", name)
    if points[0] < 0:
        raise ConfigError(f"the {name} axis begins at {points[0]}, but tokens are not negative", name)
    if any(point >= after for point, after in pairwise(points)):
        raise ConfigError(f"the {name} axis must increase strictly", name)


def _check_tokens(cached_tokens: int, new_tokens: int) -> None:
    if cached_tokens < 0 or new_tokens < 0:
        raise InvalidRequest(f"tokens must not be negative: {cached_tokens} cached, {new_tokens} new")


class _GridFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cached_tokens: list[int]
    new_tokens: list[int]
    seconds: list[list[float]]


def _grid_decoded(wanted: type, value: Any) -> CostGrid:  # noqa: ANN401 - JSON is anything
    assert wanted is CostGrid
    grid = msgspec.convert(value, _GridFile)
    return CostGrid(grid.cached_tokens, grid.new_tokens, grid.seconds)


def _readable(device: DeviceProfile) -> str:
    """The profile as JSON with a line for each field and each row of the grid."""
    fields = [f"  {json.dumps(name)}: {json.dumps(getattr(device, name))}" for name in device.__struct_fields__[:-1]]
    rows = ",\n".join(f"      {json.dumps(row)}" for row in device.grid.points)
    grid = [
        f'    "cached_tokens": {json.dumps(device.grid.cached)}',
        f'    "new_tokens": {json.dumps(device.grid.new)}',
        f'    "seconds": [\n{rows}\n    ]',
    ]
    fields.append('  "grid": {\n' + ",\n".join(grid) + "\n  }")
    return "{\n" + ",\n".join(fields) + "\n}\n"
