"""Histogram percentiles are within one percent of exact ones."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragtree_lab.simulation.time_histogram import TimeHistogram

# From the histogram's resolution of a microsecond to eleven days.
times = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200)


def counted(seconds) -> TimeHistogram:
    histogram = TimeHistogram()
    for time in seconds:
        histogram.add(time)
    return histogram


# Eighths are exact in binary, so numpy and the histogram compute the same rank.
@given(times, st.sampled_from([0.0, 12.5, 25.0, 50.0, 75.0, 87.5, 100.0]))
def test_percentiles_are_within_one_percent_of_numpys(seconds, share):
    expected = float(np.percentile(seconds, share, method="inverted_cdf"))
    assert counted(seconds).percentile(share) == pytest.approx(expected, rel=0.01 + 1e-9)


@given(times, st.integers(1, 100))
def test_percentile_is_at_least_the_time_of_its_rank(seconds, share):
    of_rank = sorted(seconds)[math.ceil(Fraction(len(seconds) * share, 100)) - 1]
    found = counted(seconds).percentile(share)
    assert of_rank * (1 - 1e-9) <= found <= of_rank * (1.01 + 1e-9)


@given(times)
def test_percentiles_rise_with_their_share(seconds):
    histogram = counted(seconds)
    found = [histogram.percentile(share) for share in range(101)]
    assert found == sorted(found)


@given(times)
def test_mean_is_exact(seconds):
    assert counted(seconds).mean == pytest.approx(math.fsum(seconds) / len(seconds), rel=1e-12)


@given(times, st.randoms(use_true_random=False))
def test_order_of_times_does_not_matter(seconds, random):
    shuffled = random.sample(seconds, len(seconds))
    assert counted(seconds).percentile(50) == counted(shuffled).percentile(50)


def test_outlier_is_found_at_its_rank():
    histogram = counted([1.0] * 99 + [100.0])
    assert histogram.percentile(99) == pytest.approx(1, rel=0.01)
    assert histogram.percentile(99.5) == pytest.approx(100, rel=0.01)


def test_empty_histogram_reports_0():
    histogram = TimeHistogram()
    assert (histogram.mean, histogram.percentile(50), histogram.percentile(99)) == (0, 0, 0)


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-6])
def test_times_below_a_microsecond_count_as_one(seconds):
    histogram = counted([seconds] * 3)
    assert histogram.percentile(50) == pytest.approx(1e-6)
    assert histogram.mean == pytest.approx(seconds)


def test_histogram_size_is_bounded():
    rng = np.random.default_rng(0)
    histogram = counted(rng.lognormal(0, 1, 20_000).tolist())
    few = len(histogram._counts)
    for time in rng.lognormal(0, 1, 20_000).tolist():
        histogram.add(time)
    # About ten standard deviations in steps of one percent.
    assert few <= len(histogram._counts) <= 1000
