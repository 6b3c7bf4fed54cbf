"""What the scheduler knows of the branches that instances keep, and what it does with that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_cases import TENANT, ask, build_scheduler, run

from cachectl.scheduling.kept_branches import KeptBranches, KeyedBranch, keyed
from cachectl.scheduling.plan_translation import request_of
from protocol.dependency import Branch
from protocol.prompts import Prompt, Segment, SegmentKind

FILM = (KeyedBranch(1, 4), KeyedBranch(2, 3))
CITY = (KeyedBranch(7, 5),)


def facts(query_id, branches, question=20, documents=""):
    return ask(query_id, documents, question)._replace(branches=branches)


def test_branches_are_found_where_they_were_computed_and_in_their_namespace():
    kept = KeptBranches(100)
    kept.keep("one", "a", FILM)
    assert kept.found("one", "a", FILM + CITY) == 7
    assert kept.found("one", "b", FILM) == kept.found("two", "a", FILM) == 0


def test_leaves_of_the_prompt_whose_use_is_longest_ago_leave_first():
    kept = KeptBranches(9)
    kept.keep("one", "a", FILM)
    kept.keep("one", "a", CITY)
    # The leaf of 3 tokens made room for the city, and the root stays.
    assert [kept.found("one", "a", (branch,)) for branch in (*FILM, *CITY)] == [4, 0, 5]


def test_nothing_is_kept_without_room():
    kept = KeptBranches(0)
    kept.keep("one", "a", FILM)
    assert kept.found("one", "a", FILM) == 0


def test_deletions_and_lost_instances_are_forgotten():
    kept = KeptBranches(100)
    for instance in ("one", "two"):
        for namespace in ("a", "b"):
            kept.keep(instance, namespace, FILM)
    kept.clear("a")
    assert kept.found("one", "a", FILM) == 0
    assert kept.found("one", "b", FILM) == 7
    kept.forget("one")
    assert kept.found("one", "b", FILM) == 0
    assert kept.found("two", "b", FILM) == 7
    kept.clear()
    assert kept.found("two", "b", FILM) == 0


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 9), max_size=6)), max_size=30), st.integers(0, 30)
)
def test_there_are_never_more_tokens_than_room(prompts, room):
    kept = KeptBranches(room)
    for namespace, numbers in prompts:
        kept.keep("one", namespace, [KeyedBranch(number, number) for number in dict.fromkeys(numbers)])
        everything = [KeyedBranch(number, number) for number in range(1, 10)]
        assert sum(kept.found("one", each, everything) for each in "ab") <= room


def test_a_key_tells_front_ancestors_and_tokens():
    branches = (Branch(2, -1), Branch(1, 0), Branch(2, -1), Branch(1, 2))
    first = keyed([1, 2], branches, [5, 6, 7, 5, 8, 7])
    assert len({branch.key for branch in first}) == 4
    assert [branch.tokens for branch in first] == [2, 1, 2, 1]
    assert keyed([1, 2], branches[:2], [5, 6, 7]) == first[:2]
    assert not {branch.key for branch in keyed([1, 3], branches, [5, 6, 7, 5, 8, 7])} & {each.key for each in first}


def test_a_request_has_the_branches_of_its_prompt_unless_nothing_of_it_is_shared():
    system = Segment(SegmentKind.SYSTEM, "s", (1, 2))
    trees = Segment(SegmentKind.QUESTION, "t", (5, 6, 7), (Branch(2, -1), Branch(1, 0)))
    prompt = Prompt((system, trees, Segment(SegmentKind.QUESTION, "q", (9,))))
    assert request_of("q", "a", prompt).branches == keyed([1, 2], trees.branches, trees.token_ids)
    assert request_of("q", "a", prompt).question_tokens == 4
    assert request_of("q", "a", prompt, unshared=True).branches == ()


@pytest.fixture
def scheduler():
    built = build_scheduler("one", branch_tokens=100)
    yield built
    built.check_integrity()


def test_a_prefill_that_finds_branches_is_expected_to_compute_the_rest(scheduler):
    first = run(scheduler, facts("first", FILM))
    assert first.computed_tokens == 20
    scheduler.prefilled("first", 1.0)
    scheduler.complete("first", 2.0, kept=True)
    assert run(scheduler, facts("second", FILM + CITY)).computed_tokens == 13


def test_of_waiting_requests_the_one_goes_first_whose_branches_are_kept(scheduler):
    run(scheduler, facts("running", FILM))
    assert scheduler.admit(facts("other", CITY), 0.0) is None
    assert scheduler.admit(facts("same", FILM), 0.0) is None
    scheduler.prefilled("running", 1.0)
    (next_one,) = scheduler.complete("running", 2.0, kept=True)
    assert next_one.query_id == "same"


def test_a_request_goes_to_the_instance_that_keeps_its_branches():
    scheduler = build_scheduler("one", "two", branch_tokens=100)
    first = run(scheduler, facts("a", FILM))
    other = run(scheduler, facts("b", CITY))
    assert {first.instance, other.instance} == {"one", "two"}
    for query_id in ("a", "b"):
        scheduler.prefilled(query_id, 1.0)
        scheduler.complete(query_id, 2.0, kept=True)
    assert run(scheduler, facts("c", CITY)).instance == other.instance
    scheduler.complete("c", 3.0, kept=True)
    assert run(scheduler, facts("d", FILM)).instance == first.instance
    assert scheduler.branches.found(first.instance, TENANT, FILM) == 7


def test_documents_and_branches_count_together(scheduler):
    run(scheduler, facts("first", FILM, documents="x"))
    scheduler.prefilled("first", 1.0)
    scheduler.complete("first", 2.0, kept=True)
    assert run(scheduler, facts("second", FILM, documents="xy")).computed_tokens == 10 + 20 - 7
