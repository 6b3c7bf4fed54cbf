"""Speculation starts if there is room, follows the candidate documents, and ends when they change."""

from itertools import groupby
from typing import NamedTuple

import pytest
from controller_integrity import check_integrity
from hypothesis import given
from hypothesis import strategies as st
from scheduler_cases import ask, build_scheduler

from cachectl.scheduling.speculation import Speculations, decide
from protocol.generation import StepBudget
from protocol.plans import SpeculationDecision

START, KEEP, DROP, WAIT = SpeculationDecision


class Generation(NamedTuple):
    """A speculative generation, and the stage after which it started, counted from 1."""

    documents: tuple[str, ...]
    started: int


class Stage(NamedTuple):
    """The decision after a stage, and the generation that then runs."""

    decision: SpeculationDecision
    running: Generation | None


def walk(stages, rooms) -> list[Stage]:
    """One query's search, stage by stage. The caller follows each decision."""
    steps: list[Stage] = []
    running: Generation | None = None
    for stage, (documents, room) in enumerate(zip(stages, rooms, strict=True), start=1):
        on = running.documents if running else None
        decision = decide(documents, on, room, final=stage == len(stages))
        if decision is START:
            running = Generation(tuple(documents), stage)
        elif decision is DROP:
            assert running is not None
            running = None
        steps.append(Stage(decision, running))
    return steps


documents = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
states = {
    "candidates": documents,
    "running": st.none() | documents,
    "room": st.booleans(),
    "final": st.booleans(),
}
# As in real queries, documents stay for a stage or more.
searches = st.lists(
    st.tuples(st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]), st.integers(1, 3)), min_size=1, max_size=5
).map(lambda runs: [found for found, stages in runs for _ in range(stages)])


# Single decisions

FIGURE_11 = [("D1", "D3"), ("D1", "D2"), ("D1", "D2"), ("D1", "D2")]


def test_figure_11_of_ragcache():
    assert walk(FIGURE_11, [True] * 4) == [
        (START, (("D1", "D3"), 1)),
        (START, (("D1", "D2"), 2)),
        (KEEP, (("D1", "D2"), 2)),
        (KEEP, (("D1", "D2"), 2)),
    ]


@pytest.mark.parametrize(
    ("candidates", "running", "room", "final", "decision"),
    [
        ("ab", None, True, False, START),
        ("ab", None, False, False, WAIT),
        ("ab", "ac", True, False, START),
        ("ab", "ac", False, False, DROP),
        ("ab", "ab", True, False, KEEP),
        ("ab", "ab", False, False, KEEP),
        ("ab", "ba", True, False, START),
        ("", None, True, False, WAIT),
        ("", "ab", True, False, DROP),
        ("ab", "ab", False, True, KEEP),
        ("ab", "ac", True, True, DROP),
        ("ab", None, True, True, WAIT),
        ("", None, True, True, WAIT),
    ],
)
def test_decide_by_candidates_running_plan_room_and_finality(candidates, running, room, final, decision):
    assert decide(candidates, running, room, final) is decision


def test_documents_are_compared_as_sequences():
    assert decide(["a", "b"], ("a", "b"), room=True, final=False) is KEEP


@given(**states)
def test_speculation_starts_only_with_room_and_preliminary_documents(candidates, running, room, final):
    if decide(candidates, running, room, final) is START:
        assert room
        assert candidates
        assert not final


@given(**states)
def test_speculation_is_kept_exactly_if_it_runs_on_the_same_documents(candidates, running, room, final):
    assert (decide(candidates, running, room, final) is KEEP) == (running == candidates)


@given(**states)
def test_only_a_running_speculation_is_dropped(candidates, running, room, final):
    decision = decide(candidates, running, room, final)
    assert decision is not DROP or running is not None
    assert decision is not WAIT or running is None


@given(st.data(), searches)
def test_a_running_speculation_uses_the_newest_documents(data, stages):
    rooms = data.draw(st.lists(st.booleans(), min_size=len(stages), max_size=len(stages)))
    for found, step in zip(stages, walk(stages, rooms), strict=True):
        assert step.running is None or step.running.documents == found


@given(searches)
def test_with_room_speculation_starts_at_the_first_stage_with_the_final_documents(stages):
    last = walk(stages, [True] * len(stages))[-1]
    *earlier, (final_documents, unchanged) = [(found, len(list(same))) for found, same in groupby(stages)]
    held_from = sum(length for _, length in earlier) + 1
    if unchanged == 1:
        assert last == ((DROP if earlier else WAIT), None)
    else:
        assert last == (KEEP, (final_documents, held_from))


# Queries on a scheduler

# A prompt with nothing cached takes 10 of the step's 30 tokens.
STEP = StepBudget(30, 10)


class Queries:
    """Queries that follow each decision, on a scheduler whose documents have 10 tokens each."""

    def __init__(self, max_running: int = 9, step: StepBudget | None = STEP) -> None:
        self.scheduler = build_scheduler(policy="LRU", max_running=max_running, step=step)
        self.speculations = Speculations(self.scheduler.speculative)
        self.plans = 0

    def search(self, query_id: str, documents: str, final: bool = False) -> SpeculationDecision:
        """Decide on a query's candidates, and admit a plan if the decision is to start."""
        decision = self.speculations.decide(query_id, documents, final)
        if decision is START:
            self.plans += 1
            plan_id = f"{query_id}~{self.plans}"
            assert self.scheduler.speculative.admit(ask(plan_id, documents), 0.0), "the decision promised room"
            self.speculations.started(query_id, plan_id, documents)
        check_integrity(self.scheduler)
        return decision

    def admit(self, query_id: str, documents: str = "") -> list[str]:
        """Admit a request that starts at once; the plans that it ends."""
        grant = self.scheduler.admit(ask(query_id, documents), 0.0)
        assert grant is not None
        return grant.ends

    def complete(self, plan_id: str) -> None:
        self.scheduler.complete(plan_id, 0.0, kept=True)


@pytest.fixture
def new_queries():
    built = []

    def build(**changes) -> Queries:
        built.append(Queries(**changes))
        return built[-1]

    yield build
    for queries in built:
        check_integrity(queries.scheduler)
        check_integrity(queries.scheduler.tree)


@pytest.fixture
def queries(new_queries):
    return new_queries()


def test_a_plan_on_the_final_documents_becomes_a_request(queries):
    assert [queries.search("q", *stage) for stage in [("ac",), ("ab",), ("ab",)]] == [START, START, KEEP]
    assert queries.scheduler.instances.running == 0
    assert queries.search("q", "ab", final=True) is KEEP
    assert queries.scheduler.instances.running == 1
    assert not queries.scheduler.speculative.runs("q~2")


def test_a_confirmed_plan_is_no_longer_a_speculation(queries):
    queries.search("q", "a")
    queries.search("q", "a", final=True)
    queries.speculations.end("q")
    assert queries.search("q", "a", final=True) is WAIT
    assert queries.scheduler.instances.running == 1


@pytest.mark.parametrize(("documents", "final"), [("b", True), ("", False)])
def test_a_dropped_speculation_keeps_its_grant_until_it_completes(queries, documents, final):
    queries.search("q", "a")
    assert queries.search("q", documents, final) is DROP
    assert not queries.scheduler.speculative.runs("q~1")
    assert list(queries.scheduler.tree.grants.open) == ["q~1"]
    assert queries.search("q", documents, final) is WAIT
    queries.complete("q~1")
    assert queries.scheduler.instances.idle == ["one"]


def test_a_start_on_other_documents_replaces_the_running_speculation(new_queries):
    queries = new_queries(max_running=1)
    assert queries.search("q", "a") is START
    assert queries.search("q", "b") is START
    assert [queries.scheduler.speculative.runs(plan_id) for plan_id in ("q~1", "q~2")] == [False, True]


@pytest.mark.parametrize("bounds", [{"max_running": 2}, {"step": StepBudget(20, 10)}])
def test_a_query_does_not_start_in_another_querys_room(new_queries, bounds):
    queries = new_queries(**bounds)
    assert [queries.search(query_id, "a") for query_id in "pqr"] == [START, START, WAIT]
    assert queries.search("p", "b") is START
    assert queries.search("p", "") is DROP
    assert queries.search("r", "a") is START


def test_a_plan_that_gave_way_is_neither_kept_nor_confirmed(new_queries):
    queries = new_queries(max_running=1)
    queries.search("q", "a")
    assert queries.admit("request") == ["q~1"]
    assert queries.search("q", "a") is WAIT
    assert queries.search("q", "a", final=True) is WAIT
    queries.complete("request")
    assert queries.search("q", "a") is START


@pytest.mark.parametrize("final", [False, True])
def test_a_plan_that_has_ended_is_neither_kept_nor_confirmed(queries, final):
    queries.search("q", "a")
    queries.complete("q~1")
    assert queries.search("q", "a", final) is (WAIT if final else START)


def test_a_query_that_starts_unasked_keeps_only_its_newest_plan(queries):
    queries.search("q", "a")
    queries.scheduler.speculative.admit(ask("q~x", "b"), 0.0)
    queries.speculations.started("q", "q~x", "b")
    assert [queries.scheduler.speculative.runs(plan_id) for plan_id in ("q~1", "q~x")] == [False, True]
    assert queries.search("q", "b") is KEEP


def test_ending_an_unknown_speculation_changes_nothing(queries):
    queries.speculations.end("unknown")
    queries.search("q", "a")
    queries.speculations.end("q")
    queries.speculations.end("q")
    assert not queries.scheduler.speculative.runs("q~1")


def test_a_sweep_forgets_completed_plans_only(queries):
    queries.search("ended", "a")
    queries.search("running", "b")
    queries.complete("ended~1")
    queries.speculations.sweep()
    assert list(queries.speculations._running) == ["running"]
    assert queries.search("running", "b") is KEEP


@given(
    st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from(["", "a", "b", "ab"]), st.booleans()), max_size=20),
    st.integers(1, 3),
)
def test_speculations_on_a_scheduler_match_the_plain_decisions(events, max_running):
    queries = Queries(max_running, step=None)
    model: dict[str, tuple[str, ...]] = {}
    confirmed = 0
    for query_id, found, final in events:
        others = confirmed + len(model) - (query_id in model)
        expected = decide(found, "".join(model[query_id]) if query_id in model else None, others < max_running, final)
        assert queries.search(query_id, found, final) is expected
        if expected is not KEEP or final:
            confirmed += expected is KEEP
            model.pop(query_id, None)
        if expected is START:
            model[query_id] = tuple(found)
        going_on = {plan for plan in queries.scheduler.tree.grants.open if queries.scheduler.speculative.runs(plan)}
        assert {plan.split("~")[0] for plan in going_on} == set(model)
        assert queries.scheduler.instances.running == confirmed
