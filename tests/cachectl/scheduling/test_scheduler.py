"""The scheduler admits requests within its bounds, keeps what they compute, and survives lost instances."""

import pytest
from controller_integrity import check_integrity
from scheduler_cases import (
    ask,
    cached,
    checked_schedulers,
    end,
    fill,
    run,
    serve_all,
    state,
    wait,
)
from tree_cases import key

from cachectl.nodes.node import PathDocument
from cachectl.scheduling.request import Request
from protocol.errors import ConfigError, InvalidRequest, Overloaded, Unavailable, UnknownInstance, UnknownPlan
from protocol.tiers import Tier


@pytest.fixture
def build():
    with checked_schedulers() as build:
        yield build


@pytest.fixture
def scheduler(build):
    return build()


@pytest.mark.parametrize("caches", [0, -1])
def test_a_scheduler_without_slots_is_refused(build, caches):
    with pytest.raises(ConfigError, match=str(caches)):
        build(max_running=caches)


def test_what_would_donate_to_a_waiting_request_is_looked_ahead_to(build):
    scheduler = build()
    fill(scheduler, "scb", "sa")
    run(scheduler, ask("runs", "x"))
    wait(scheduler, ask("waits", "sab", pinned=1)._replace(recompute_share=0.2), ask("waits exactly", "sab"))
    lookahead = scheduler._lookahead
    assert lookahead.waiting_for(key("scb")) == ["waits"]
    assert lookahead.waiting_for(key("sa")) == ["waits", "waits exactly"]
    assert serve_all(scheduler, "runs") == ["waits", "waits exactly"]
    assert lookahead.waiting_for(key("scb")) == []


# Grants


def test_documents_are_found_once_their_request_completes(build):
    scheduler = build(max_running=9)
    assert cached(run(scheduler, ask("computes", "abc"))) == 0
    assert cached(run(scheduler, ask("too soon", "ab"))) == 0
    scheduler.complete("computes", 0.0, kept=True)
    grant = run(scheduler, ask("finds", "abx"))
    assert [(bytes.fromhex(step.key), step.source) for step in grant.documents] == [
        (key("a"), Tier.GPU),
        (key("ab"), Tier.GPU),
        (key("abx"), None),
    ]


@pytest.mark.parametrize("ends", [True, False], ids=["completes", "fails afterwards"])
def test_documents_are_found_once_their_request_is_prefilled(build, ends):
    scheduler = build(max_running=9)
    run(scheduler, ask("computes", "ab"))
    assert scheduler.prefilled("computes", 0.0) == []
    assert cached(run(scheduler, ask("finds", "ab"))) == 2
    scheduler.complete("computes", 0.0, kept=ends)
    assert cached(run(scheduler, ask("finds again", "ab"))) == 2


def test_a_failed_request_leaves_nothing(scheduler):
    run(scheduler, ask("fails", "ab"))
    scheduler.complete("fails", 0.0, kept=False)
    assert not scheduler.tree.registry.nodes
    assert scheduler.tree.tiers.gpu("one").used == 0


@pytest.mark.parametrize("tell", ["prefilled", "complete"])
def test_a_lost_copy_is_removed_with_everything_behind_it(scheduler, tell):
    fill(scheduler, "abc")
    run(scheduler, ask("loses", "abc"))
    if tell == "prefilled":
        scheduler.prefilled("loses", 0.0, [(key("ab"), Tier.GPU)])
        end(scheduler, "loses")
    else:
        scheduler.complete("loses", 0.0, kept=True, lost=[(key("ab"), Tier.GPU)])
    assert cached(run(scheduler, ask("finds", "abc"))) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_any_request_may_report_lost_copies_and_unknown_ones_are_ignored(scheduler, kept):
    fill(scheduler, "ab", "c")
    run(scheduler, ask("tells", "c"))
    scheduler.complete("tells", 0.0, kept, lost=[(key("a"), Tier.GPU), (b"unknown", Tier.DISK)])
    assert cached(run(scheduler, ask("again", "ab"))) == 0


def test_lost_copies_of_a_waiting_request_are_ignored(build):
    scheduler = build(max_queued=1)
    fill(scheduler, "a")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("waits", "a"))
    scheduler.complete("waits", 0.0, kept=True, lost=[(key("a"), Tier.GPU)])
    end(scheduler, "runs")
    assert cached(run(scheduler, ask("again", "a"))) == 1


def test_the_book_names_running_and_waiting_queries_by_document(build):
    scheduler = build(max_running=2)
    run(scheduler, ask("runs", "ab"))
    run(scheduler, ask("other", "c"))
    wait(scheduler, ask("waits", "b"))
    assert scheduler.book.naming({"b", "x"}, None) == scheduler.book.naming(["b"], "tenant") == {"runs", "waits"}
    assert scheduler.book.naming(["b"], "unknown") == scheduler.book.naming([], None) == set()


def test_a_failed_request_removes_lost_copies_too(scheduler):
    fill(scheduler, "abc")
    run(scheduler, ask("fails", "abc"))
    scheduler.complete("fails", 0.0, kept=False, lost=[(key("ab"), Tier.GPU)])
    assert cached(run(scheduler, ask("finds", "abc"))) == 1


# Refusals


def test_requests_beyond_the_queue_bound_are_refused(build):
    scheduler = build("one", "two", max_queued=1)
    for number in range(4):
        scheduler.admit(ask(str(number), "a"), 0.0)
    before = state(scheduler)
    with pytest.raises(Overloaded, match="2 queries are running and 2 waiting"):
        scheduler.admit(ask("refused", "a"), 0.0)
    assert state(scheduler) == before


def test_a_free_slot_needs_no_room_in_the_queue(build):
    scheduler = build(max_queued=0)
    run(scheduler, ask("runs"))
    with pytest.raises(Overloaded):
        scheduler.admit(ask("refused"), 0.0)
    end(scheduler, "runs")
    run(scheduler, ask("next"))


def test_without_an_instance_requests_are_refused(scheduler):
    scheduler.instances.remove("one")
    with pytest.raises(Unavailable, match="no instance"):
        scheduler.admit(ask("query"), 0.0)
    assert (scheduler.instances.running, scheduler.instances.queued, scheduler.instances.idle) == (0, 0, [])


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda scheduler: scheduler.admit(ask("runs"), 0.0), InvalidRequest),
        (lambda scheduler: scheduler.admit(ask("waits"), 0.0), InvalidRequest),
        (lambda scheduler: scheduler.admit(ask("new", "a", question=-1), 0.0), InvalidRequest),
        (lambda scheduler: scheduler.admit(Request("new", "tenant", (PathDocument("z", 0),), 1), 0.0), InvalidRequest),
        (lambda scheduler: scheduler.complete("unknown", 0.0, kept=True), UnknownPlan),
        (lambda scheduler: scheduler.complete("ended", 0.0, kept=True), UnknownPlan),
        (lambda scheduler: scheduler.prefilled("unknown", 0.0), UnknownPlan),
        (lambda scheduler: scheduler.prefilled("ended", 0.0), UnknownPlan),
        (lambda scheduler: scheduler.prefilled("waits", 0.0), UnknownPlan),
        (lambda scheduler: scheduler.stalled("waits", 0.0), UnknownPlan),
        (lambda scheduler: scheduler.instances.remove("unknown"), UnknownInstance),
    ],
    ids=[
        "runs already",
        "is queued already",
        "negative question",
        "empty document",
        "completed, but never admitted",
        "completed twice",
        "prefilled, but never admitted",
        "prefilled after it completed",
        "prefilled while it waits",
        "stalled while it waits",
        "unknown instance removed",
    ],
)
def test_invalid_calls_are_refused_and_change_nothing(scheduler, refused, error):
    fill(scheduler, "x")
    run(scheduler, ask("ended", "y"))
    end(scheduler, "ended")
    run(scheduler, ask("runs", "ab"))
    wait(scheduler, ask("waits", "a"))
    before = state(scheduler)
    with pytest.raises(error):
        refused(scheduler)
    assert state(scheduler) == before


@pytest.mark.parametrize("tokens", [2, 12])
def test_a_document_with_another_length_than_the_trees_is_refused(scheduler, tokens):
    fill(scheduler, "a")
    before = state(scheduler)
    with pytest.raises(InvalidRequest):
        scheduler.admit(Request("contradicts", "tenant", (PathDocument("a", tokens),), 1), 0.0)
    assert state(scheduler) == before
    check_integrity(scheduler)
    run(scheduler, ask("contradicts", "a"))


@pytest.mark.parametrize("tokens", [2, 12])
def test_waiting_requests_with_contradicting_lengths_do_not_harm_others(scheduler, tokens):
    run(scheduler, ask("runs"))
    wait(scheduler, ask("first", "a"), Request("second", "tenant", (PathDocument("a", tokens),), 1), ask("patient"))
    assert {"first", "patient"} <= set(serve_all(scheduler, "runs"))


# Idle instances and cached requests


def test_an_instance_without_running_requests_is_idle(build):
    scheduler = build("one", "two")
    assert scheduler.instances.idle == ["one", "two"]
    run(scheduler, ask("query"))
    assert scheduler.instances.idle == ["two"]
    end(scheduler, "query")
    assert scheduler.instances.idle == ["one", "two"]


@pytest.mark.parametrize(
    ("documents", "whole"), [("", True), ("a", True), ("ab", True), ("abc", False), ("b", False), ("ax", False)]
)
def test_a_request_is_cached_when_one_instance_has_all_its_documents(build, documents, whole):
    scheduler = build("one", "two")
    fill(scheduler, "ab")
    assert scheduler.is_cached(ask("query", documents)) == whole


# Instances


def test_requests_of_a_removed_instance_can_be_admitted_again(build):
    scheduler = build("one", "two", max_running=1)
    fill(scheduler, "ab")
    requests = [ask("on one", "abc"), ask("on two"), ask("waits for one", "abd")]
    assert run(scheduler, requests[0]).instance == "one"
    assert run(scheduler, requests[1]).instance == "two"
    wait(scheduler, requests[2])
    returned = scheduler.instances.remove("one")
    assert returned == [requests[0], requests[2]]
    assert (scheduler.instances.running, scheduler.instances.queued) == (1, 0)
    assert not scheduler.tree.registry.nodes
    wait(scheduler, *returned)
    assert serve_all(scheduler, "on two") == ["on one", "waits for one"]


def test_a_request_of_a_removed_instance_cannot_complete(build):
    scheduler = build("one", "two")
    run(scheduler, ask("query", "a"))
    scheduler.instances.remove("one")
    with pytest.raises(UnknownPlan):
        scheduler.complete("query", 0.0, kept=True)


def test_a_new_instance_takes_requests_and_has_nothing_cached(build):
    scheduler = build()
    fill(scheduler, "a")
    run(scheduler, ask("runs", "a", question=50))
    scheduler.instances.add("two")
    grant = run(scheduler, ask("query", "a"))
    assert (grant.instance, cached(grant)) == ("two", 0)


def test_adding_a_known_instance_to_a_scheduler_changes_nothing(build):
    scheduler = build()
    fill(scheduler, "a")
    run(scheduler, ask("runs", "a"))
    wait(scheduler, ask("waits", "a"))
    before = state(scheduler)
    scheduler.instances.add("one")
    assert state(scheduler) == before


def test_an_instance_added_again_has_an_empty_cache(build):
    scheduler = build("one", "two")
    fill(scheduler, "a")
    scheduler.instances.remove("one")
    scheduler.instances.add("one")
    assert scheduler.instances.idle == ["two", "one"]
    assert cached(run(scheduler, ask("query", "a"))) == 0


def test_documents_in_host_memory_outlive_their_instance(build):
    scheduler = build("one", gpu=20, host=100)
    fill(scheduler, "ab", "cd")
    scheduler.instances.remove("one")
    scheduler.instances.add("two")
    grant = run(scheduler, ask("query", "ab"))
    assert [step.source for step in grant.documents] == [Tier.HOST, Tier.HOST]
