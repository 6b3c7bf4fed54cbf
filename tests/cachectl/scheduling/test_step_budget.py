"""Prefills run at once as far as one engine step takes them."""

import pytest
from scheduler_cases import (
    ask,
    checked_schedulers,
    end,
    fill,
    run,
    wait,
)

from protocol.errors import Overloaded
from protocol.generation import StepBudget
from protocol.tiers import Tier


@pytest.fixture
def build():
    with checked_schedulers() as build:
        yield build


@pytest.fixture
def steps(build):
    """A scheduler whose engine steps take 30 tokens, 20 of one prompt. "a" and "ab" are cached."""
    scheduler = build(max_running=9, step=StepBudget(30, 20))
    fill(scheduler, "ab")
    return scheduler


def test_prefills_run_at_once_within_the_step_budget(steps):
    run(steps, ask("long", "xyz"))
    run(steps, ask("short", "ac", question=0))
    wait(steps, ask("too much", "ab"))
    assert steps.prefilled("short", 0.0)[0].query_id == "too much"
    wait(steps, ask("long too", "uvw"))
    assert [grant.query_id for grant in steps.prefilled("long", 0.0)] == ["long too"]
    # Decoding requests take no step budget, so completing them frees none.
    assert end(steps, "long") == end(steps, "short") == []


def test_a_short_prefill_overtakes_a_long_one_that_waits(steps):
    run(steps, ask("long", "xyz"))
    wait(steps, ask("long too", "uvw"))
    run(steps, ask("short", "ab"))
    assert end(steps, "long") == ["long too"]
    assert steps.instances.largest_overtake == 1


def test_short_prefills_overtake_within_the_window_only(build):
    scheduler = build(max_running=9, window=1, step=StepBudget(30, 20))
    fill(scheduler, "ab")
    run(scheduler, ask("long", "xyz"))
    wait(scheduler, ask("long too", "uvw"))
    run(scheduler, ask("short", "ab"))
    wait(scheduler, ask("short too", "ab"))
    assert end(scheduler, "short") == []
    assert end(scheduler, "long") == ["long too", "short too"]


def test_a_prefill_larger_than_a_step_runs_alone(build):
    scheduler = build(max_running=9, step=StepBudget(10, 20))
    run(scheduler, ask("first", "xyz"))
    wait(scheduler, ask("second", "ab"), ask("third", question=0))
    assert end(scheduler, "first", kept=False) == ["second"]
    assert [grant.query_id for grant in scheduler.prefilled("second", 0.0)] == ["third"]


def test_withdrawing_the_first_request_lets_the_next_start(steps):
    run(steps, ask("long", "xyz"))
    wait(steps, ask("long too", "uvw"), ask("shorter, with nothing cached either", "c", question=0))
    assert end(steps, "long too") == ["shorter, with nothing cached either"]


def test_a_request_that_loads_longer_than_it_computes_takes_no_step_budget(build):
    scheduler = build(gpu=20, host=1000, max_running=9, step=StepBudget(30, 20), load_s=0.9)
    fill(scheduler, "ab", "cd")
    loads = run(scheduler, ask("loads 18 s, computes 11 s", "abe"))
    assert [step.source for step in loads.documents] == [Tier.HOST, Tier.HOST, None]
    run(scheduler, ask("long", "xyz"))
    wait(scheduler, ask("long too", "uvw"))
    assert end(scheduler, "loads 18 s, computes 11 s") == []
    assert end(scheduler, "long") == ["long too"]


def test_a_stalled_request_releases_its_step_budget(steps):
    run(steps, ask("lost", "xyz"))
    wait(steps, ask("waits", "uvw"))
    assert [grant.query_id for grant in steps.stalled("lost", 0.0)] == ["waits"]
    assert steps.stalled("lost", 0.0) == end(steps, "lost") == []


def test_without_queue_room_only_requests_that_fit_now_are_admitted(build):
    scheduler = build(max_running=9, max_queued=0, step=StepBudget(30, 20))
    run(scheduler, ask("long", "xyz"))
    with pytest.raises(Overloaded):
        scheduler.admit(ask("long too", "uvw"), 0.0)
    run(scheduler, ask("short", "a", question=0))
