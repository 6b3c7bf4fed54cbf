"""Mode mix adds up two rankings."""

import pytest

from retriever.graph.graph_searcher import by_place, mixed


def test_places_count_less_and_less():
    counts = by_place(range(50))
    assert (counts[0], counts[10], counts[30]) == (1.0, 0.5, 0.25)
    assert sorted(counts, key=counts.__getitem__, reverse=True) == list(range(50))


def test_both_rankings_add_up():
    assert mixed({1: 1.0, 2: 0.5}, {2: 1.0, 3: 0.5}) == pytest.approx({1: 1.0, 2: 0.9, 3: 0.2})
    assert list(mixed({1: 0.5}, {2: 1.0, 3: 0.5, 1: 0.25})) == [1, 2, 3]


def test_the_graphs_favourite_does_not_pass_what_is_far_ahead():
    """The graph's best chunk moves up by a few places of the other search, and not from its end to its beginning."""
    found = list(range(50))
    assert next(iter(mixed(by_place(found), {4: 1.0}))) == 4
    assert list(mixed(by_place(found), {49: 1.0})).index(49) == 8


def test_without_one_ranking_the_other_one_stays():
    assert list(mixed(by_place([7, 5, 6]), {})) == [7, 5, 6]
    assert list(mixed({}, {7: 1.0, 5: 0.4})) == [7, 5]
