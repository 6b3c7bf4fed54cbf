"""Runs of tokens are joined and cut without losing any."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from generator.composing.runs import Run, best, joined, slices, windows

runs = st.builds(lambda start, tokens: Run(start, start + tokens), st.integers(0, 60), st.integers(0, 20))


def tokens_of(given_runs) -> set[int]:
    return {token for run in given_runs for token in range(run.start, run.end)}


@given(st.lists(runs))
def test_joined_runs_have_the_same_tokens_and_do_not_touch(given_runs):
    found = joined(given_runs)
    assert tokens_of(found) == tokens_of(given_runs)
    assert all(run.tokens > 0 for run in found)
    assert all(left.end < right.start for left, right in itertools.pairwise(found))


@given(st.lists(runs), st.integers(1, 30))
def test_slices_have_all_tokens_in_order_and_are_full_but_for_the_last(given_runs, size):
    whole = joined(given_runs)
    parts = list(slices(whole, size))
    tokens = [token for part in parts for run in part for token in range(run.start, run.end)]
    assert tokens == sorted(tokens_of(whole))
    assert all(sum(run.tokens for run in part) == size for part in parts[:-1])
    assert all(0 < sum(run.tokens for run in part) <= size for part in parts[-1:])


def test_windows_begin_with_each_document_and_the_last_one_may_be_shorter():
    assert windows([Run(5, 15), Run(15, 19)], 4) == [Run(5, 9), Run(9, 13), Run(13, 15), Run(15, 19)]


@given(st.integers(0, 40), st.lists(st.floats(0, 1, width=32), min_size=30, max_size=30))
def test_the_best_windows_are_those_with_the_highest_means_that_the_budget_suffices_for(budget, scores):
    candidates = windows([Run(0, 15), Run(15, 30)], 5)
    chosen = tokens_of(best(candidates, torch.tensor(scores), budget))
    assert len(chosen) == min(budget // 5 * 5, 30)
    means = {run: sum(scores[run.start : run.end]) / 5 for run in candidates}
    taken = [mean for run, mean in means.items() if run.start in chosen]
    left = [mean for run, mean in means.items() if run.start not in chosen]
    assert min(taken, default=1.0) >= max(left, default=0.0) - 1e-6


def test_a_short_window_takes_what_is_left_of_the_budget():
    scores = torch.tensor([5.0] * 5 + [4.0] * 5 + [1.0] * 3)
    assert best(windows([Run(0, 13)], 5), scores, 9) == [Run(0, 5), Run(10, 13)]
