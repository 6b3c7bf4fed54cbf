"""Confidence intervals of a mean, and percentiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examine.measuring.statistics import (
    bootstrap_interval,
    grouped_bootstrap_interval,
    percentile,
)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_exact_percentile_is_linearly_interpolated(values, share):
    ranked = sorted(values)
    place = share / 100 * (len(ranked) - 1)
    below = min(int(place), len(ranked) - 1)
    above = min(below + 1, len(ranked) - 1)
    expected = ranked[below] + (place - below) * (ranked[above] - ranked[below])
    assert percentile(values, share) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_exact_percentile_of_a_known_series():
    assert [percentile([4, 1, 3, 2], share) for share in (0, 50, 99, 100)] == pytest.approx([1, 2.5, 3.97, 4])


def test_interval_reaches_two_standard_errors_from_the_mean():
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = bootstrap_interval(values.tolist(), 0)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_values_that_repeat_within_a_group_do_not_narrow_the_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, 100).tolist()
    repeated = [[value] * 6 for value in values]
    assert grouped_bootstrap_interval(repeated, 0) == pytest.approx(bootstrap_interval(values, 0))


def test_groups_count_by_their_size():
    low, high = grouped_bootstrap_interval([[0.0], [1.0, 1.0, 1.0]], 0)
    assert (low, high) == (0.0, 1.0)
    assert grouped_bootstrap_interval([[1.0, 0.0, 0.5]], 0) == (0.5, 0.5)


def test_interval_of_equal_values_is_empty():
    assert bootstrap_interval([0.5] * 7, 0) == (0.5, 0.5)


def test_equal_seeds_give_equal_intervals():
    values = [0.0, 0.0, 1.0, 0.25, 0.5]
    assert bootstrap_interval(values, 3) == bootstrap_interval(values, 3)
    assert bootstrap_interval(values, 3)[0] >= 0
