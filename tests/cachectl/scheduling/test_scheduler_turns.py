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


def test_requests_run_up_to_the_number_of_slots(build):
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
def test_the_largest_cached_share_goes_first_within_the_window(build, window, order):
    scheduler = build(window=window)
    fill(scheduler, "abc")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("none", "xyz"), ask("some", "axy"), ask("most", "abx"))
    assert serve_all(scheduler, "runs") == order.split()
    assert scheduler.instances.largest_overtake <= window


def test_a_request_overtakes_once_its_documents_are_cached(scheduler):
    fill(scheduler, "x")
    run(scheduler, ask("computes", "ab"))
    wait(scheduler, ask("a third", "xyz"), ask("two thirds", "abc"))
    assert serve_all(scheduler, "computes") == ["two thirds", "a third"]
    assert scheduler.instances.largest_overtake == 1


def test_a_request_overtakes_once_its_documents_are_prefilled(build):
    scheduler = build(max_running=2)
    run(scheduler, ask("computes", "ab"))
    run(scheduler, ask("other"))
    wait(scheduler, ask("nothing", "xyz"), ask("two thirds", "abc"))
    scheduler.prefilled("computes", 0.0)
    assert end(scheduler, "other") == ["two thirds"]


def test_a_request_does_not_overtake_if_its_documents_were_not_kept(scheduler):
    run(scheduler, ask("fails", "ab"))
    wait(scheduler, ask("older", "xyz"), ask("younger", "abc"))
    assert end(scheduler, "fails", kept=False) == ["older"]


def test_the_window_bounds_how_often_a_request_is_overtaken(build):
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
def test_a_request_falls_back_when_its_documents_are_deleted(scheduler, late):
    if late:
        scheduler.instances.remove("one")
        scheduler.instances.add("one")
    fill(scheduler, "a", "xy")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("some", "abc"), ask("most", "xyz"))
    scheduler.tree.delete("y")
    scheduler.tree.delete("x")
    assert serve_all(scheduler, "runs") == ["some", "most"]


def test_a_request_falls_back_when_its_documents_are_evicted(build):
    scheduler = build(gpu=30)
    fill(scheduler, "a", "b")
    run(scheduler, ask("runs"))
    # "first" has 10 of 31 tokens cached, "loses" 10 of 40, and "gains" 10 of 50. "first" evicts "a" for "c" and "d".
    wait(scheduler, ask("first", "bcd"), ask("loses", "a", question=30), ask("gains", "b", question=40))
    assert serve_all(scheduler, "runs") == ["first", "gains", "loses"]


@pytest.mark.parametrize(("written", "next_one"), [(True, "younger"), (False, "older")])
def test_a_request_overtakes_when_another_instance_has_its_documents_in_host_memory(build, written, next_one):
    scheduler = build("one", "two", gpu=20, host=100)
    fill(scheduler, "ab")
    run(scheduler, ask("on one", question=100))
    assert run(scheduler, ask("on two")).instance == "two"
    wait(scheduler, ask("older", "x"), ask("younger", "ab"))
    end(scheduler, "on one")
    evicts = run(scheduler, ask("evicts", "cd"))
    assert [(move.tokens, move.target) for move in evicts.moves] == [(TOKENS, Tier.HOST)] * 2
    if written:
        assert end(scheduler, "evicts") == []
    assert end(scheduler, "on two") == [next_one]


def test_a_withdrawn_request_frees_its_room_in_the_queue(build):
    scheduler = build(max_queued=1)
    run(scheduler, ask("runs"))
    wait(scheduler, ask("withdrawn", "a"))
    assert end(scheduler, "withdrawn", kept=False) == []
    assert (scheduler.instances.running, scheduler.instances.queued) == (1, 0)
    wait(scheduler, ask("patient", "a"))
    assert end(scheduler, "runs") == ["patient"]


@pytest.mark.parametrize(
    "gives_up",
    [lambda scheduler: end(scheduler, "waits", kept=False), lambda scheduler: scheduler.instances.remove("two")],
    ids=["query", "instance"],
)
def test_documents_that_only_a_withdrawn_request_needed_lose_their_priority(build, gives_up):
    # FORESIGHT values documents that queued requests need over those used in the past.
    scheduler = build("one", "two", policy="FORESIGHT", gpu=20)
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


def test_a_completed_query_id_can_be_used_again(scheduler):
    run(scheduler, ask("query", "a"))
    end(scheduler, "query")
    assert cached(run(scheduler, ask("query", "a"))) == 1
