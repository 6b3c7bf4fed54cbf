"""When to begin on provisional documents: at once where a wrong guess is cheap, when it is likely right where not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settling import Settling

KIND = ("tenant", "collection", 5, True)
STAGES = 8
STAGE_MS = 10.0


def learnt(*settled_at: float, ending_ms: float = 0.0, times: int = 40) -> Settling:
    """What so many searches have taught that settled at each of these shares of their time, in turn."""
    settling = Settling()
    for _ in range(times):
        for at in settled_at:
            settling.settled(KIND, at)
        settling.ended(ending_ms)
    return settling


def begins(settling: Settling) -> list[int]:
    """The stages after which it would begin."""
    return [stage for stage in range(1, STAGES) if settling.worth_beginning(KIND, stage, STAGES, stage * STAGE_MS)]


def test_where_a_wrong_guess_costs_nothing_every_stage_is_worth_one():
    assert begins(Settling()) == begins(learnt(0.9, 1.0)) == list(range(1, STAGES))


def test_where_the_first_guess_is_the_only_one_it_waits_until_the_overlap_is_likely_the_longest():
    assert begins(learnt(0.5, ending_ms=1000.0)) == [4, 5, 6, 7]
    # A quarter each: 1/4 of 6 stages, 2/4 of 4, 3/4 of 2 - the second is the best, and then it gets no better.
    assert begins(learnt(0.25, 0.5, 0.75, 1.0, ending_ms=1000.0)) == [4, 5, 6, 7]


def test_where_an_engine_is_free_again_in_time_it_begins_sooner():
    assert min(begins(learnt(0.5, 1.0, ending_ms=1000.0))) > min(begins(learnt(0.5, 1.0, ending_ms=STAGE_MS)))


def test_kinds_of_searches_are_told_apart():
    settling = learnt(0.5, ending_ms=1000.0)
    assert settling.odds(KIND, 0.5) > 0.9
    assert settling.odds("another", 0.5) == 0.5


def test_what_was_long_ago_is_forgotten():
    settling = learnt(1.0, times=300)
    for _ in range(300):
        settling.settled(KIND, 0.1)
    assert settling.odds(KIND, 0.2) > 0.9


def test_of_very_many_kinds_the_latest_are_known():
    settling = Settling()
    for number in range(1000):
        settling.settled(number, 1.0)
    assert settling.odds(0, 0.5) == 0.5
    assert settling.odds(999, 0.5) < 0.5


@given(st.lists(st.floats(0.001, 1.0), max_size=60), st.floats(0, 500), st.integers(2, 16), st.floats(0, 50))
def test_odds_rise_with_time_and_some_stage_is_always_worth_it(settled_at, ending_ms, of, stage_ms):
    settling = Settling()
    for at in settled_at:
        settling.settled(KIND, at)
        settling.ended(ending_ms)
    odds = [settling.odds(KIND, stage / of) for stage in range(1, of + 1)]
    assert odds == sorted(odds)
    assert odds[-1] == pytest.approx(1.0)
    assert all(0 <= each <= 1 for each in odds[:-1])
    # After the last stage but one there is nothing better to wait for.
    assert settling.worth_beginning(KIND, of - 1, of, (of - 1) * stage_ms)
