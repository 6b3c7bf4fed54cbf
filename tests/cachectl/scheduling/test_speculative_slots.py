"""Speculations use slots and step budget that no request needs, and give way to requests."""

import pytest
from controller_integrity import check_integrity
from scheduler_cases import (
    STEP,
    TOKENS,
    ask_without_question,
    checked_schedulers,
    end,
    fill,
    run,
    speculate,
    speculations,
    state,
    wait,
)

from cachectl.nodes.node import PathDocument
from cachectl.scheduling.request import Request
from cachectl.scheduling.speculation import SpeculativeSlots
from protocol.errors import InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier


@pytest.fixture
def build():
    with checked_schedulers(max_running=9, step=STEP) as build:
        yield build


@pytest.fixture
def scheduler(build):
    return build()


# Room


def test_there_is_room_while_a_step_has_tokens_left(scheduler):
    run(scheduler, ask_without_question("request", "ab"))
    assert scheduler.speculative.has_room()
    speculate(scheduler, ask_without_question("guess", "c"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask_without_question("too much", "", question=1), 0.0) is None
    scheduler.prefilled("request", 0.0)
    speculate(scheduler, ask_without_question("next", "xy"))
    assert not scheduler.speculative.has_room()


def test_a_speculation_too_large_for_the_step_changes_nothing(scheduler):
    run(scheduler, ask_without_question("request", "ab"))
    before = state(scheduler)
    assert scheduler.speculative.admit(ask_without_question("guess", "xy"), 0.0) is None
    assert state(scheduler) == before
    speculate(scheduler, ask_without_question("guess", "x"))


def test_a_speculation_larger_than_a_step_starts_alone(build):
    scheduler = build(step=StepBudget(10, 20))
    speculate(scheduler, ask_without_question("guess", "ab"))
    assert not scheduler.speculative.has_room()


def test_without_a_step_budget_slots_are_the_room(build):
    scheduler = build(step=None, max_running=2)
    run(scheduler, ask_without_question("request", "abc"))
    speculate(scheduler, ask_without_question("guess", "xyz"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask_without_question("another"), 0.0) is None


def test_slots_bound_the_room_with_a_step_budget_too(build):
    scheduler = build(max_running=1)
    speculate(scheduler, ask_without_question("guess"))
    assert not scheduler.speculative.has_room()


@pytest.mark.parametrize("bounds", [{"max_running": 1}, {"step": StepBudget(10, 10)}], ids=["cache", "step"])
def test_the_room_of_a_speculation_to_be_replaced_counts_as_free(build, bounds):
    scheduler = build(**bounds)
    speculate(scheduler, ask_without_question("guess", "a"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.has_room(besides="guess")
    assert not scheduler.speculative.has_room(besides="unknown")


def test_the_room_of_a_request_never_counts_as_free(build):
    scheduler = build(max_running=1)
    run(scheduler, ask_without_question("request"))
    assert not scheduler.speculative.has_room(besides="request")


def test_no_speculation_starts_beside_a_request_that_waits(scheduler):
    run(scheduler, ask_without_question("long", "ab"))
    wait(scheduler, ask_without_question("waits", "xy"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask_without_question("guess", question=1), 0.0) is None
    scheduler.prefilled("long", 0.0)
    speculate(scheduler, ask_without_question("guess", question=1))


def test_a_speculation_starts_on_an_instance_with_room(build):
    scheduler = build("one", "two", max_running=1)
    run(scheduler, ask_without_question("request"))
    speculate(scheduler, ask_without_question("guess", "a"))
    assert scheduler.tree.grants.open["guess"].instance == "two"
    assert not scheduler.speculative.has_room()


def test_without_an_instance_there_is_no_room(scheduler):
    scheduler.instances.remove("one")
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask_without_question("guess"), 0.0) is None


def test_speculations_find_each_others_documents(scheduler):
    speculate(scheduler, ask_without_question("first", "ab"))
    scheduler.prefilled("first", 0.0)
    grant = scheduler.speculative.admit(ask_without_question("second", "abc"), 0.0)
    assert [step.source for step in grant.documents] == [Tier.GPU, Tier.GPU, None]


@pytest.mark.parametrize(
    ("request_", "known"),
    [
        (ask_without_question("guess", "x"), "guess"),
        (ask_without_question("request", "x"), "request"),
        (ask_without_question("new", "x", question=-1), None),
        (Request("new", "tenant", (PathDocument("a", 7),), 0), None),
    ],
    ids=["speculates already", "runs already", "negative question", "another length than the tree's"],
)
def test_invalid_calls_are_refused_and_change_nothing(scheduler, request_, known):
    run(scheduler, ask_without_question("request", "a"))
    speculate(scheduler, ask_without_question("guess", "b"))
    scheduler.prefilled("request", 0.0)
    before = state(scheduler)
    with pytest.raises(InvalidRequest, match=known):
        scheduler.speculative.admit(request_, 0.0)
    with pytest.raises(InvalidRequest, match=known):
        scheduler.admit(request_, 0.0)
    assert state(scheduler) == before


# Giving way


def test_speculations_give_every_slot_to_requests(build):
    scheduler = build(step=None, max_running=3)
    speculate(scheduler, *(ask_without_question(query_id) for query_id in "abc"))
    assert [run(scheduler, ask_without_question(query_id)).ends for query_id in "xyz"] == [["c"], ["b"], ["a"]]
    wait(scheduler, ask_without_question("too many"))


def test_speculations_give_the_whole_step_to_requests(scheduler):
    speculate(scheduler, *(ask_without_question(query_id, query_id) for query_id in "abc"))
    assert run(scheduler, ask_without_question("request", "xy")).ends == ["c", "b"]
    assert run(scheduler, ask_without_question("another", "z")).ends == ["a"]
    wait(scheduler, ask_without_question("too much", "w"))


def test_what_a_speculation_was_to_move_is_moved_by_the_request_that_ends_it(build):
    # The request's plan may be there first, and its moves need the pages that those of the speculation free.
    scheduler = build(gpu=2 * TOKENS, host=2 * TOKENS, max_running=1)
    fill(scheduler, "a", "b")
    guess = scheduler.speculative.admit(ask_without_question("guess", "c"), 0.0)
    assert guess is not None
    moves = list(guess.moves)
    assert [(move.source, move.target) for move in moves] == [(Tier.GPU, Tier.HOST)]
    request = run(scheduler, ask_without_question("request", "de"))
    assert request.ends == ["guess"]
    assert request.moves[: len(moves)] == moves
    assert guess.moves == []
    end(scheduler, "guess", kept=False)
    end(scheduler, "request")
    assert not scheduler.tree.tiers.pending_moves


def test_what_a_speculation_has_begun_to_move_is_left_to_it(build):
    scheduler = build(gpu=2 * TOKENS, host=2 * TOKENS, max_running=1)
    fill(scheduler, "a", "b")
    guess = scheduler.speculative.admit(ask_without_question("guess", "c"), 0.0)
    assert guess is not None
    scheduler.prefilled("guess", 0.0)
    moves = list(guess.moves)
    request = run(scheduler, ask_without_question("request", "d"))
    assert request.ends == ["guess"]
    assert guess.moves == moves
    assert not set(moves) & set(request.moves)
    end(scheduler, "guess")
    end(scheduler, "request")


def test_a_request_that_fits_ends_no_speculation(scheduler):
    speculate(scheduler, ask_without_question("a", "a"), ask_without_question("b", "b"))
    assert run(scheduler, ask_without_question("request", "x")).ends == []
    assert speculations(scheduler) == ["a", "b"]


def test_a_request_without_a_step_share_ends_no_speculation(build):
    scheduler = build(gpu=20, host=1000, load_s=0.9)
    for path in ("ab", "cd"):
        run(scheduler, ask_without_question("fill", path))
        scheduler.complete("fill", 0.0, kept=True)
    speculate(scheduler, ask_without_question("x", "x", question=10), ask_without_question("y", "y"))
    assert not scheduler.speculative.has_room()
    assert run(scheduler, ask_without_question("loads 18 s, computes 11 s", "ab", question=11)).ends == []


def test_the_newest_speculations_give_way_first_and_only_as_many_as_needed(scheduler):
    speculate(scheduler, *(ask_without_question(name, question=5) for name in "abcd"))
    assert run(scheduler, ask_without_question("request", "x", question=9)).ends == ["d", "c"]
    assert speculations(scheduler) == ["a", "b"]


def test_speculations_give_way_to_a_waiting_request_when_it_starts(scheduler):
    run(scheduler, ask_without_question("long", "a", question=5))
    speculate(scheduler, *(ask_without_question(name, question=5) for name in "bcd"))
    wait(scheduler, ask_without_question("waits", "xy"))
    assert speculations(scheduler) == ["b", "c", "d"]
    [grant] = scheduler.prefilled("long", 0.0)
    assert (grant.query_id, grant.ends) == ("waits", ["d"])


def test_a_prefilled_speculation_is_not_ended_for_its_step_share(scheduler):
    speculate(scheduler, ask_without_question("prefills", "a"), ask_without_question("decodes", "bc"))
    scheduler.prefilled("decodes", 0.0)
    assert run(scheduler, ask_without_question("request", "xy", question=1)).ends == []
    assert run(scheduler, ask_without_question("another", "z")).ends == ["prefills"]
    assert speculations(scheduler) == ["decodes"]


def test_a_stalled_speculation_is_not_ended_for_its_step_share(scheduler):
    speculate(scheduler, ask_without_question("lost", "ab"))
    assert scheduler.stalled("lost", 0.0) == []
    assert scheduler.speculative.has_room()
    assert run(scheduler, ask_without_question("request", "xyz")).ends == []
    assert run(scheduler, ask_without_question("another", "z")).ends == []


def test_a_prefilled_speculation_gives_its_slot_to_a_request(build):
    scheduler = build(max_running=1)
    speculate(scheduler, ask_without_question("decodes", "a"))
    scheduler.prefilled("decodes", 0.0)
    assert run(scheduler, ask_without_question("request")).ends == ["decodes"]


def test_only_speculations_of_the_requests_instance_give_way(build):
    scheduler = build("one", "two", max_running=1)
    speculate(scheduler, ask_without_question("on one", question=2), ask_without_question("on two", question=1))
    assert {query_id: scheduler.tree.grants.open[query_id].instance for query_id in ("on one", "on two")} == {
        "on one": "one",
        "on two": "two",
    }
    assert run(scheduler, ask_without_question("request")).ends == ["on one"]
    assert speculations(scheduler) == ["on two"]


def test_speculations_take_no_room_in_the_queue(build):
    scheduler = build(max_running=1, max_queued=0)
    speculate(scheduler, ask_without_question("guess"))
    assert run(scheduler, ask_without_question("request")).ends == ["guess"]
    with pytest.raises(Overloaded, match="1 queries are running and 0 waiting"):
        scheduler.admit(ask_without_question("refused"), 0.0)


# Confirm, withdraw, complete


def test_a_confirmed_speculation_counts_as_a_request(scheduler):
    speculate(scheduler, ask_without_question("guess", "ab"))
    assert scheduler.instances.running == 0
    scheduler.speculative.confirm("guess")
    assert scheduler.instances.running == 1
    assert speculations(scheduler) == []
    wait(scheduler, ask_without_question("waits for the step", "xy"))
    assert [grant.query_id for grant in scheduler.prefilled("guess", 0.0)] == ["waits for the step"]


def test_a_confirmed_speculation_keeps_its_slot(build):
    scheduler = build(step=None, max_running=1)
    speculate(scheduler, ask_without_question("guess"))
    scheduler.speculative.confirm("guess")
    wait(scheduler, ask_without_question("waits"))
    assert [grant.query_id for grant in scheduler.complete("guess", 0.0, kept=True)] == ["waits"]


def test_a_speculation_confirmed_after_its_prefill_takes_no_step_budget(scheduler):
    speculate(scheduler, ask_without_question("guess", "ab"))
    scheduler.prefilled("guess", 0.0)
    scheduler.speculative.confirm("guess")
    run(scheduler, ask_without_question("a", "xy"))
    run(scheduler, ask_without_question("b", "z"))
    assert scheduler.instances.running == 3


def test_a_withdrawn_speculation_frees_its_room_and_keeps_its_grant(build):
    scheduler = build(max_running=1)
    speculate(scheduler, ask_without_question("guess", "ab"))
    scheduler.speculative.withdraw("guess")
    assert (speculations(scheduler), list(scheduler.tree.grants.open)) == ([], ["guess"])
    assert scheduler.speculative.has_room()
    assert run(scheduler, ask_without_question("request", "xyz")).ends == []


@pytest.mark.parametrize("act", [SpeculativeSlots.confirm, SpeculativeSlots.withdraw], ids=["confirm", "withdraw"])
@pytest.mark.parametrize("query_id", ["request", "waits", "confirmed", "withdrawn", "gave way", "ended", "unknown"])
def test_only_running_speculations_are_confirmed_or_withdrawn(build, act, query_id):
    scheduler = build(step=None, max_running=3)
    speculate(scheduler, *(ask_without_question(name) for name in ("ended", "withdrawn", "confirmed")))
    scheduler.complete("ended", 0.0, kept=True)
    scheduler.speculative.withdraw("withdrawn")
    scheduler.speculative.confirm("confirmed")
    run(scheduler, ask_without_question("request"))
    speculate(scheduler, ask_without_question("gave way"))
    assert run(scheduler, ask_without_question("another")).ends == ["gave way"]
    wait(scheduler, ask_without_question("waits"))
    before = state(scheduler)
    with pytest.raises(UnknownPlan, match=query_id):
        act(scheduler.speculative, query_id)
    assert not scheduler.speculative.runs(query_id)
    assert state(scheduler) == before


ENDS = {
    "going on": lambda scheduler: None,
    "withdrawn": lambda scheduler: scheduler.speculative.withdraw("guess"),
    "gave way": lambda scheduler: run(scheduler, ask_without_question("in its way", "xy")),
    "confirmed": lambda scheduler: scheduler.speculative.confirm("guess"),
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_speculation_completes_once_in_any_state(build, end, prefilled, kept):
    scheduler = build(max_running=1)
    speculate(scheduler, ask_without_question("guess", "ab"))
    if prefilled:
        scheduler.prefilled("guess", 0.0)
    ENDS[end](scheduler)
    if not prefilled and end != "going on":
        check_integrity(scheduler)
        scheduler.prefilled("guess", 0.0)
    scheduler.complete("guess", 0.0, kept)
    check_integrity(scheduler)
    with pytest.raises(UnknownPlan):
        scheduler.complete("guess", 0.0, kept)
    if end == "gave way":
        assert (scheduler.instances.running, scheduler.instances.idle) == (1, [])
        scheduler.complete("in its way", 0.0, kept=False)
    assert (scheduler.instances.running, scheduler.instances.idle, scheduler.tree.grants.open) == (0, ["one"], {})
    found = [step.source for step in scheduler.admit(ask_without_question("again", "ab"), 0.0).documents]
    assert found == [Tier.GPU if kept or prefilled or end != "going on" else None] * 2


def test_a_completed_speculation_does_not_start_a_request_that_needs_more(scheduler):
    run(scheduler, ask_without_question("long", "ab"))
    speculate(scheduler, ask_without_question("guess", "c"))
    wait(scheduler, ask_without_question("waits", "xy"))
    assert scheduler.complete("guess", 0.0, kept=True) == []
    assert [grant.query_id for grant in scheduler.prefilled("long", 0.0)] == ["waits"]


def test_an_instance_with_a_speculation_is_not_idle(build):
    scheduler = build("one", "two")
    speculate(scheduler, ask_without_question("guess"))
    assert scheduler.instances.idle == ["two"]


def test_an_instances_backlog_is_never_negative(build):
    # Routing uses the backlog.
    scheduler = build("one", "two", step=None)
    speculate(scheduler, ask_without_question("on one", "abc"), ask_without_question("on two", "xyz"))
    run(scheduler, ask_without_question("request", question=1))
    scheduler.complete("request", 0.0, kept=True)
    run(scheduler, ask_without_question("request", question=1))
    for query_id in ("on one", "on two"):
        scheduler.complete(query_id, 0.0, kept=False)
    assert min(state.backlog_s for state in scheduler.instances.states.values()) >= 0


def test_a_removed_instance_takes_its_speculations_along(build):
    scheduler = build("one", "two", max_running=2)
    requests = [ask_without_question(name, question=9) for name in ("confirmed", "guess", "on two")]
    speculate(scheduler, *requests[:2])
    scheduler.speculative.confirm("confirmed")
    speculate(scheduler, requests[2])
    assert scheduler.tree.grants.open["on two"].instance == "two"
    assert scheduler.instances.remove("one") == requests[:2]
    assert scheduler.instances.running == 0
    assert speculations(scheduler) == ["on two"]
    for query_id in ("confirmed", "guess"):
        with pytest.raises(UnknownPlan):
            scheduler.complete(query_id, 0.0, kept=True)
    scheduler.instances.add("one")
    assert scheduler.instances.idle == ["one"]
