"""Which rates are tried, and which count as sustained."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragtree_lab.measuring.phases import Measured
from ragtree_lab.replay.sustained_rate import RateSearch, Sustained, rate_at, step_below

UNLOADED = Measured(None, 10, 10, 1.0, 1.0, 100.0, 100.0, 120.0, 900.0, 0.0, {})


@pytest.mark.parametrize(
    ("mean_ttft_ms", "answered", "sustained"), [(500, 0.95, True), (501, 1.0, False), (100, 0.94, False)]
)
def test_a_rate_is_sustained_with_short_waits_and_hardly_any_backlog(mean_ttft_ms, answered, sustained):
    loaded = msgspec.structs.replace(UNLOADED, mean_ttft_ms=mean_ttft_ms, answered_in_time=answered)
    assert Sustained(UNLOADED).holds(loaded) is sustained


def test_an_answer_may_take_as_long_as_the_longest_ttft_and_the_rest_of_an_unloaded_answer():
    assert Sustained(UNLOADED).longest_answer_s == pytest.approx(0.5 + 0.8)


def test_rates_are_at_most_15_percent_apart_and_readable():
    rates = [rate_at(step) for step in range(-20, 30)]
    assert all(above / below <= 1.15 for below, above in pairwise(rates))
    assert rate_at(0) == 1.0
    assert all(len(f"{rate:g}") <= 6 for rate in rates)


@given(st.floats(0.01, 1000))
def test_step_below_a_rate(rate):
    step = step_below(rate)
    assert rate_at(step) <= rate * 1.006
    assert rate_at(step + 1) > rate * 0.994


@given(st.integers(-30, 30), st.integers(-30, 30), st.sets(st.integers(-30, 30)))
def test_the_highest_sustained_step_is_found_in_a_few_tries(first, highest, known):
    search = RateSearch(first)
    for step in known:
        search.add(step, step <= highest)
    tried = []
    while (step := search.next) is not None:
        assert step not in tried
        assert step not in known
        tried.append(step)
        search.add(step, step <= highest)
    assert {highest, highest + 1} <= {*tried, *known}
    assert len(tried) <= 12 + max(0, first - highest)


def test_a_search_ends_if_nothing_is_sustained():
    search = RateSearch(-35)
    tried = []
    while (step := search.next) is not None:
        tried.append(step)
        search.add(step, False)
    assert tried == [-35, -36, -37, -38, -39, -40]


def test_a_step_that_fails_below_a_sustained_one_counts():
    search = RateSearch(3)
    search.add(3, True)
    search.add(2, False)
    assert search.next == 1
