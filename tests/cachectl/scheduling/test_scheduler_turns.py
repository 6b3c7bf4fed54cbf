"""Waiting requests start in the order of their cached share, within the reorder window."""

import pytest
from scheduler_cases import (
    TOKENS,
    ask,
    cached,
    checked_schedulers,
    end,
    fill,
    run,
    serve_all,
    wait,
)
from tree_cases import key

from protocol.tiers import Tier


@pytest.fixture
def build():
    with checked_schedulers() as build:
        yield build


@pytest.fixture
def scheduler(build):
    return build()


def test_places_are_taken_up_to_their_bound(build):
    scheduler = build(max_running=3)
    for query_id in "abc":
        run(scheduler, ask(query_id))
    wait(scheduler, ask("d"), ask("e"))
    assert (scheduler.instances.running, scheduler.instances.queued) == (3, 2)
    assert end(scheduler, "b") == ["d"]
    assert end(scheduler, "d") == ["e"]
    assert end(scheduler, "a") == end(scheduler, "c") == end(scheduler, "e") == []
    assert (scheduler.instances.running, scheduler.instances.queued) == (0, 0)


@pytest.mark.parametrize(
    ("window", "order"), [(0, "none some most"), (1, "most none some"), (9, "most some none")], ids=str
)
def test_the_most_cached_goes_first_within_the_window(build, window, order):
    scheduler = build(window=window)
    fill(scheduler, "abc")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("none", "xyz"), ask("some", "axy"), ask("most", "abx"))
    assert serve_all(scheduler, "runs") == order.split()
    assert scheduler.instances.largest_overtake <= window


def test_whose_documents_become_resident_overtakes(scheduler):
    fill(scheduler, "x")
    run(scheduler, ask("computes", "ab"))
    wait(scheduler, ask("a third", "xyz"), ask("two thirds", "abc"))
    assert serve_all(scheduler, "computes") == ["two thirds", "a third"]
    assert scheduler.instances.largest_overtake == 1


def test_whose_documents_become_resident_at_the_first_token_overtakes(build):
    scheduler = build(max_running=2)
    run(scheduler, ask("computes", "ab"))
    run(scheduler, ask("other"))
    wait(scheduler, ask("nothing", "xyz"), ask("two thirds", "abc"))
    scheduler.prefilled("computes", 0.0)
    assert end(scheduler, "other") == ["two thirds"]


def test_whose_documents_were_not_kept_does_not_overtake(scheduler):
    run(scheduler, ask("fails", "ab"))
    wait(scheduler, ask("older", "xyz"), ask("younger", "abc"))
    assert end(scheduler, "fails", kept=False) == ["older"]


def test_nobody_is_overtaken_more_often_than_the_window_allows(build):
    scheduler = build(window=3)
    fill(scheduler, "a")
    run(scheduler, ask("0", "a"))
    wait(scheduler, ask("unlucky", "x"))
    served = []
    overtaken = {}
    for number in range(1, 9):
        wait(scheduler, ask(str(number), "a"))
        for grant in scheduler.complete(served[-1] if served else "0", 0.0, kept=True):
            served.append(grant.query_id)
            overtaken[grant.query_id] = grant.overtaken
    assert served.index("unlucky") == 3
    assert overtaken.pop("unlucky") == 3
    assert not any(overtaken.values())
    assert scheduler.instances.largest_overtake == 3


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "added later"])
def test_whose_documents_are_deleted_falls_back(scheduler, late):
    if late:
        scheduler.lifecycle.remove("one")
        scheduler.lifecycle.add("one")
    fill(scheduler, "a", "xy")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("some", "abc"), ask("most", "xyz"))
    scheduler.tree.delete("y")
    scheduler.tree.delete("x")
    assert serve_all(scheduler, "runs") == ["some", "most"]


def test_whose_documents_are_evicted_falls_back(build):
    scheduler = build(gpu=30)
    fill(scheduler, "a", "b")
    run(scheduler, ask("runs"))
    # Cached are 10 of 31, 10 of 40 and 10 of 50 tokens; "first" makes room for "c" and "d" at the expense of "a".
    wait(scheduler, ask("first", "bcd"), ask("loses", "a", question=30), ask("gains", "b", question=40))
    assert serve_all(scheduler, "runs") == ["first", "gains", "loses"]


def test_whose_documents_come_into_shared_memory_from_another_instance_overtakes(build):
    scheduler = build("one", "two", gpu=20, host=100)
    fill(scheduler, "ab")
    run(scheduler, ask("on one", question=100))
    assert run(scheduler, ask("on two")).instance == "two"
    wait(scheduler, ask("older", "x"), ask("younger", "ab"))
    end(scheduler, "on one")
    evicts = run(scheduler, ask("evicts", "cd"))
    assert [(move.tokens, move.target) for move in evicts.moves] == [(TOKENS, Tier.HOST)] * 2
    assert end(scheduler, "on two") == ["younger"]


def test_who_gives_up_makes_no_room_to_run_but_room_to_wait(build):
    scheduler = build(max_queued=1)
    run(scheduler, ask("runs"))
    wait(scheduler, ask("gives up", "a"))
    assert end(scheduler, "gives up", kept=False) == []
    assert (scheduler.instances.running, scheduler.instances.queued) == (1, 0)
    wait(scheduler, ask("patient", "a"))
    assert end(scheduler, "runs") == ["patient"]


@pytest.mark.parametrize(
    "gives_up",
    [lambda scheduler: end(scheduler, "waits", kept=False), lambda scheduler: scheduler.lifecycle.remove("two")],
    ids=["query", "instance"],
)
def test_what_only_a_lost_wait_needed_is_worth_no_more_than_before(build, gives_up):
    # LACR: what the queue needs is worth more than what was used in the past.
    scheduler = build("one", "two", policy="LACR", gpu=20)
    fill(scheduler, "a", "b", "b")
    run(scheduler, ask("on one", question=100))
    assert run(scheduler, ask("on two")).instance == "two"
    wait(scheduler, ask("waits", "a"))
    end(scheduler, "on one")
    fill(scheduler, "c")
    assert set(scheduler.tree.registry.nodes) == {key("a"), key("c")}
    gives_up(scheduler)
    fill(scheduler, "d")
    assert set(scheduler.tree.registry.nodes) == {key("c"), key("d")}


def test_a_query_may_come_again_when_it_has_ended(scheduler):
    run(scheduler, ask("query", "a"))
    end(scheduler, "query")
    assert cached(run(scheduler, ask("query", "a"))) == 1
