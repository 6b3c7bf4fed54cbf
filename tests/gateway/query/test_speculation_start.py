"""When to start a guess: at once if a wrong one is cheap, otherwise when it is probably right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.query.speculation_start import SpeculationStart

KIND = ("tenant", "collection", 5, True)
STAGES = 8
STAGE_MS = 10.0


def learnt(*settled: float, ending_ms: float = 0.0, of_use: float = 0.0, times: int = 40) -> SpeculationStart:
    """Trained with ``times`` rounds of searches that were final at these shares of their time."""
    start = SpeculationStart()
    for _ in range(times):
        for at in settled:
            start.record_search(KIND, at, STAGE_MS)
    for _ in range(times):
        start.record_ending(ending_ms)
        start.record_use(of_use)
    return start


def begins(start: SpeculationStart, since: int | None = None) -> list[int]:
    """Stages after which it starts a guess on documents that are new there, or unchanged since ``since``."""
    first = since or 1
    return [stage for stage in range(first, STAGES) if start.worth_starting(KIND, stage, STAGES, since or stage)]


def test_every_stage_is_worth_a_free_guess():
    assert begins(SpeculationStart()) == begins(learnt(0.9, 1.0)) == list(range(1, STAGES))


def test_single_guess_waits_for_the_likely_final_stage():
    assert begins(learnt(0.5, ending_ms=80.0)) == [4]


def test_documents_of_the_likely_final_stage_are_preferred():
    start = learnt(0.25, 1.0, ending_ms=50.0)
    assert begins(start, since=2) == [2, 3, 4]
    assert begins(start) == [2]


def test_guess_that_delays_the_query_is_not_started():
    assert begins(learnt(1.0, ending_ms=500.0)) == []


def test_useful_wrong_guesses_are_started_at_once():
    assert begins(learnt(1.0, ending_ms=500.0, of_use=1.0)) == list(range(1, STAGES))


def test_abandoned_guesses_are_tried_again():
    start = learnt(1.0, ending_ms=500.0)
    assert begins(start) == []
    searches = 0
    while not begins(start):
        start.record_search(KIND, 1.0, STAGE_MS)
        searches += 1
    assert 50 < searches < 1000


def test_kinds_of_searches_are_separate():
    start = learnt(0.5, ending_ms=1000.0)
    assert start.odds(KIND, 0.5) > 0.9
    assert start.odds("another", 0.5) == 0.5
    assert start.worth_starting("another", 1, STAGES, 1)


def test_old_searches_are_forgotten():
    start = learnt(1.0, times=300)
    for _ in range(300):
        start.record_search(KIND, 0.1, STAGE_MS)
    assert start.odds(KIND, 0.2) > 0.9


def test_number_of_kinds_is_bounded():
    start = SpeculationStart()
    for number in range(1000):
        start.record_search(number, 1.0, STAGE_MS)
    assert start.odds(0, 0.5) == 0.5
    assert start.odds(999, 0.5) < 0.5


@given(
    st.lists(st.floats(0.001, 1.0), max_size=60),
    st.floats(0, 500),
    st.floats(0, 1),
    st.integers(2, 16),
    st.floats(0, 50),
    st.data(),
)
def test_odds_increase_with_time(settled, ending_ms, of_use, of, stage_ms, data):
    start = SpeculationStart()
    for at in settled:
        start.record_search(KIND, at, stage_ms)
        start.record_ending(ending_ms)
        start.record_use(of_use)
    odds = [start.odds(KIND, stage / of) for stage in range(of + 1)]
    assert odds == sorted(odds)
    assert (odds[0], odds[-1]) == (0.0, pytest.approx(1.0))
    stage = data.draw(st.integers(1, of - 1))
    since = data.draw(st.integers(1, stage))
    assert start.worth_starting(KIND, stage, of, since) in (True, False)
    if not ending_ms:
        assert start.worth_starting(KIND, stage, of, since)
