"""The order of a page's numbers that engines with different attention backends share."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from generator.connector.blocks.layout_map import axes_of
from generator.connector.blocks.paged_blocks import LayerPlaces
from generator.tiers.base import Page
from protocol.errors import ConfigError

_Numbers: TypeAlias = NDArray[Any]


class NeutralOrder:
    """Turns pages from an engine's ``own`` order into the neutral one, and back.

    In the neutral order, each layer has its keys [tokens, heads, key_dim], then its values [tokens, heads, value_dim],
    both in C order. The layers have the engine's order. ``places`` says where such pages have their numbers, each of
    which has ``itemsize`` bytes.

    Only numpy copies: torch would start OpenMP threads on each thread that calls.
    """

    def __init__(self, own: Sequence[LayerPlaces], itemsize: int) -> None:
        """Raises ConfigError if ``own`` are not all elements of a page, each once."""
        elements = np.concatenate([layer.in_page for layer in own])
        if not np.array_equal(np.sort(elements), np.arange(elements.size)):
            raise ConfigError("this engine's pages have no neutral order: their elements are not each one number")
        self._dtype = np.dtype(f"u{itemsize}")
        self._parts: list[_Part] = []
        self.places: list[LayerPlaces] = []
        first = 0
        for shape, same in groupby(own, lambda layer: layer.shape):
            layers = list(same)
            rows = np.arange(first, first + len(layers) * shape.numbers, dtype=np.uint32).reshape(len(layers), -1)
            self.places += [layer._replace(in_page=row) for layer, row in zip(layers, rows, strict=True)]
            places = np.stack([layer.in_page for layer in layers]).astype(np.int64)
            span = slice(first, first + rows.size)
            for columns, dim in ((slice(shape.keys), shape.key_dim), (slice(shape.keys, None), shape.value_dim)):
                part = places[:, columns].reshape(-1, shape.tokens, shape.heads, dim)
                self._parts.append(_Part(span, columns, part))
            first += rows.size

    def to_neutral(self, own: Page, neutral: Page) -> None:
        """Fill the page ``neutral`` with the numbers of the page ``own``."""
        source, target = own.view(self._dtype), neutral.view(self._dtype)
        for part in self._parts:
            part.to_neutral(source, target)

    def to_own(self, neutral: Page, own: Page) -> None:
        """Fill the page ``own`` with the numbers of the page ``neutral``."""
        source, target = neutral.view(self._dtype), own.view(self._dtype)
        for part in self._parts:
            part.to_own(source, target)


class _Part:
    """The keys, or the values, of consecutive layers of one shape. All of them are one copy, if they lie along axes.

    A neutral page has these layers in ``span``, and the part in the ``columns`` of each. The engine's pages
    have it at ``places`` [layers, tokens, heads, dims].
    """

    def __init__(self, span: slice, columns: slice, places: NDArray[np.int64]) -> None:
        self._span = span
        self._columns = columns
        self._layers = len(places)
        self._axes = axes_of(places)
        self._sizes = self._axes.sizes if self._axes is not None else places.shape
        self._places = places if self._axes is None else None

    def to_neutral(self, own: _Numbers, neutral: _Numbers) -> None:
        """Copy it from a page of the engine's own into a neutral one."""
        self._in_neutral(neutral)[...] = own[self._places] if self._places is not None else self._in_own(own)

    def to_own(self, neutral: _Numbers, own: _Numbers) -> None:
        """Copy it from a neutral page into one of the engine's own."""
        if self._places is not None:
            own[self._places] = self._in_neutral(neutral)
        else:
            self._in_own(own)[...] = self._in_neutral(neutral)

    def _in_neutral(self, page: _Numbers) -> _Numbers:
        """A view of it in a neutral page."""
        return page[self._span].reshape(self._layers, -1)[:, self._columns].reshape(self._sizes)

    def _in_own(self, page: _Numbers) -> _Numbers:
        """A view of it in a page of the engine's own."""
        assert self._axes is not None
        first, sizes, strides = self._axes
        size = page.itemsize
        return np.ndarray(sizes, page.dtype, page, first * size, [stride * size for stride in strides])
