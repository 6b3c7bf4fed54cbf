"""Places in memory are recognised as axes where they are some."""

import numpy as np
import pytest

from generator.connector.blocks.layout_map import Axes, axes_of


def test_places_along_nested_axes_are_recognised():
    """As where a backend splits a block's tokens: sixteen of them stand side by side, and the rest further on."""
    tokens, heads, dims = np.arange(32), np.arange(2), np.arange(8)
    places = (tokens // 16 * 1000 + tokens % 16)[:, None, None] + (heads * 200)[:, None] + dims * 16
    assert axes_of(places) == Axes(0, (2, 16, 2, 8), (1000, 1, 200, 16))


@pytest.mark.parametrize("shape", [(5,), (3, 1, 4), (2, 3, 4, 5)])
def test_places_of_any_shape_and_order_are_recognised(shape):
    transposed = np.arange(7, 7 + np.prod(shape)).reshape(shape[::-1]).transpose()
    axes = axes_of(transposed)
    assert axes is not None
    assert (axes.first, axes.sizes) == (7, shape)
    steps = np.indices(shape).reshape(len(shape), -1)
    assert (axes.first + np.array(axes.strides) @ steps == transposed.reshape(-1)).all()


def test_places_in_disorder_lie_along_no_axes():
    places = np.random.default_rng(0).permutation(4 * 2 * 8).reshape(4, 2, 8)
    assert axes_of(places) is None


def test_places_whose_rows_begin_at_uneven_distances_lie_along_no_axes():
    assert axes_of(np.array([0, 1, 5, 6, 9, 10])) is None
