"""Axes along which numbers lie in memory. A copy along axes is several times faster than one by places."""

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Axes(NamedTuple):
    """Axes in C order from the element ``first`` on, by ``sizes`` and ``strides``, counted in elements."""

    first: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def axes_of(places: NDArray[np.int64]) -> Axes | None:
    """The axes along which ``places`` lie, one or several for each of their dimensions. None if they lie along none."""
    first = places.flat[0]
    offsets = [_offsets(places, dim) - first for dim in range(places.ndim)]
    if not np.array_equal(places - first, reduce(np.add.outer, offsets)):
        return None
    nested = [list(_nested(along)) for along in offsets]
    if any(np.prod([size for size, _ in axes]) != len(along) for axes, along in zip(nested, offsets, strict=True)):
        return None
    sizes, strides = zip(*(axis for axes in nested for axis in axes), strict=True)
    return Axes(int(first), sizes, strides)


def _offsets(places: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """The places along one dimension, at the beginning of all others."""
    return places[tuple(slice(None) if other == dim else 0 for other in range(places.ndim))]


def _nested(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Sizes and strides of nested axes whose offsets these are, outermost first; too few if there are none."""
    size = len(offsets)
    if size == 1:
        yield 1, 0
        return
    stride = int(offsets[1])
    steps = np.diff(offsets) == stride
    run = size if steps.all() else int(np.argmin(steps)) + 1
    if run == size:
        yield size, stride
    elif run > 1 and size % run == 0:
        rows = offsets.reshape(-1, run)
        if np.array_equal(rows, rows[:, :1] + rows[:1]):
            yield from _nested(rows[:, 0])
            yield run, stride
