"""What the scheduler knows of the branches that instances keep, and what it does with that."""

import pytest
from controller_integrity import check_integrity
from hypothesis import given
from hypothesis import strategies as st
from scheduler_cases import TENANT, ask, build_scheduler, run

from cachectl.branches import NO_BRANCHES, KeptBranches, KeyedBranch, keyed
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from protocol.dependency import Branch, DependencyTrees, branch_keys


def branches(*names_and_tokens, stated_by="") -> tuple[KeyedBranch, ...]:
    """A path of branches, each below the one before it. The letters of ``stated_by`` name chunks that state all."""
    return tuple(
        KeyedBranch(name.encode(), tokens, place - 1, tuple(stated_by))
        for place, (name, tokens) in enumerate(names_and_tokens)
    )


FILM = branches(("film", 4), ("director", 3), stated_by="a")
CITY = branches(("city", 5), stated_by="b")
BOTH = (*FILM, *CITY)


def facts(query_id, branches, question=20, documents=""):
    return ask(query_id, documents, question)._replace(branches=branches)


def build(room, policy="LRU", lookahead=None):
    # An empty one is false.
    lookahead = Lookahead() if lookahead is None else lookahead
    return KeptBranches(lambda: create_policy(policy, lookahead), room, lambda cached, new: float(new))


def names(dropped) -> list[str]:
    return [key.decode() for key in dropped]


def test_branches_are_found_where_they_are_kept():
    kept = build(100)
    assert kept.keep("one", "a", FILM, 10) == ()
    assert kept.found("one", BOTH) == 7
    assert kept.found("two", FILM) == 0


def test_what_leaves_is_told_leaves_first():
    kept = build(9)
    kept.keep("one", "a", FILM, 10)
    assert names(kept.keep("one", "a", CITY, 10)) == ["director"]
    assert [kept.found("one", (branch,)) for branch in BOTH] == [4, 0, 5]
    assert names(kept.keep("one", "a", branches(("sea", 9)), 10)) == ["film", "city"]


def test_a_prompt_drops_nothing_of_its_own():
    kept = build(9)
    kept.keep("one", "a", FILM, 10)
    assert kept.keep("one", "a", BOTH, 10) == ()
    assert kept.found("one", BOTH) == 7


def test_the_policy_decides_what_leaves():
    lookahead = Lookahead()
    kept = build(9, "FORESIGHT", lookahead)
    kept.keep("one", "a", branches(("film", 4)), 10)
    kept.keep("one", "a", CITY, 10)
    # LRU would drop the film, which a waiting request needs.
    lookahead.enter("q", [b"film"])
    assert names(kept.keep("one", "a", branches(("sea", 4)), 10)) == ["city"]


def test_what_nobody_waits_for_any_more_may_leave():
    lookahead = Lookahead()
    kept = build(9, "FORESIGHT", lookahead)
    lookahead.enter("q", [b"film"])
    for _ in range(2):
        kept.keep("one", "a", branches(("film", 4)), 10)
        kept.keep("one", "a", CITY, 10)
    kept.keep("one", "a", CITY, 10)
    kept.reconsider(lookahead.leave("q"))
    assert names(kept.keep("one", "a", branches(("sea", 4)), 10)) == ["film"]


def test_nothing_is_kept_without_room():
    for kept in (build(0), NO_BRANCHES):
        assert kept.keep("one", "a", FILM, 10) == ()
        assert kept.found("one", FILM) == 0


def test_a_deletion_forgets_what_no_other_chunk_states():
    kept = build(100)
    shared = KeyedBranch(b"film", 4, -1, ("c",))
    for instance in ("one", "two"):
        kept.keep(instance, "tenant", (*BOTH, *branches(("Facts:", 2))), 10)
        kept.keep(instance, "tenant", (shared, KeyedBranch(b"year", 1, 0, ("c",))), 10)
    kept.delete(["a", "unknown"], "tenant")
    check_integrity(kept)
    # The film is stated elsewhere, the director is not.
    assert [kept.found("two", [branch]) for branch in BOTH] == [4, 0, 5]
    kept.delete(["b", "c"], None)
    check_integrity(kept)
    assert kept.found("one", (*BOTH, KeyedBranch(b"year", 1, 0))) == 0
    assert kept.found("one", branches(("Facts:", 2))) == 2


def test_a_deletion_forgets_what_stands_below():
    kept = build(100)
    kept.keep("one", "tenant", (*branches(("film", 4), stated_by="a"), KeyedBranch(b"director", 3, 0, ("b",))), 10)
    kept.delete(["a"], "tenant")
    check_integrity(kept)
    assert kept.found("one", FILM) == 0


def test_deletions_and_lost_instances_are_forgotten():
    kept = build(100)
    others = branches(("other film", 4), ("other director", 3), stated_by="a")
    for instance in ("one", "two"):
        kept.keep(instance, "a", FILM, 10)
        kept.keep(instance, "b", others, 10)
    kept.delete(["a"], "a")
    check_integrity(kept)
    assert kept.found("one", FILM) == 0
    assert kept.found("one", others) == 7
    kept.forget("one")
    assert kept.found("one", others) == 0
    assert kept.found("two", others) == 7
    kept.clear()
    assert kept.found("two", others) == 0


def test_what_was_deleted_is_kept_again_when_it_is_computed_again():
    kept = build(9)
    for _ in range(3):
        kept.keep("one", "a", FILM, 10)
        kept.delete(["a"], "a")
    assert kept.keep("one", "a", FILM, 10) == ()
    assert names(kept.keep("one", "a", CITY, 10)) == ["director"]


PROMPTS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(1, 9), max_size=6)), max_size=30)
DELETED = st.lists(st.sampled_from("uvw"), max_size=30)


@given(PROMPTS, DELETED, st.integers(0, 30), st.sampled_from(["LRU", "PGDSF", "FORESIGHT"]))
def test_an_engine_that_drops_what_it_is_told_keeps_what_is_expected(prompts, deleted, room, policy):
    kept, engine, sizes = build(room, policy), set(), {}
    for at, (namespace, numbers) in enumerate(prompts):
        prompt = [
            KeyedBranch(f"{namespace}{numbers[:place]}{number}".encode(), number, place - 1, ("uvw"[number % 3],))
            for place, number in enumerate(numbers)
        ]
        sizes |= {branch.key: branch.tokens for branch in prompt}
        dropped = kept.keep("one", namespace, prompt, 5)
        assert set(dropped) <= engine
        assert not set(dropped) & {branch.key for branch in prompt}
        engine -= set(dropped)
        engine |= {branch.key for branch in prompt if kept.found("one", [branch])}
        assert sum(sizes[key] for key in engine) <= room
        everything = [KeyedBranch(key, tokens, -1) for key, tokens in sizes.items()]
        assert kept.found("one", everything) == sum(sizes[key] for key in engine)
        check_integrity(kept)
        if at < len(deleted):
            kept.delete([deleted[at]], namespace)
            check_integrity(kept)
            engine = {branch.key for branch in everything if kept.found("one", [branch])}
            assert not any(kept.found("one", [branch]) for branch in prompt if branch.stated_by == (deleted[at],))


def test_a_prompt_that_has_a_branch_twice_keeps_it_once():
    kept = build(9)
    twice = (KeyedBranch(b"film", 4, -1), KeyedBranch(b"film", 4, -1))
    assert kept.keep("one", "a", twice, 10) == ()
    check_integrity(kept)
    assert names(kept.keep("one", "a", branches(("sea", 9)), 10)) == ["film"]


def test_branches_of_a_prompt_have_keys_tokens_and_parents():
    trees = DependencyTrees(3, 2, (Branch(2, -1), Branch(1, 0), Branch(2, -1)))
    token_ids = (1, 2, 99, 5, 6, 7, 8, 9, 10)
    found = keyed("a", trees, token_ids)
    assert [branch.key for branch in found] == branch_keys("a", trees, token_ids)
    assert [(branch.tokens, branch.parent) for branch in found] == [(2, -1), (1, 0), (2, -1)]


@pytest.fixture
def scheduler():
    built = build_scheduler("one", branch_tokens=100)
    yield built
    check_integrity(built)


def test_a_prefill_that_finds_branches_is_expected_to_compute_the_rest(scheduler):
    first = run(scheduler, facts("first", FILM))
    assert first.computed_tokens == 20
    scheduler.prefilled("first", 1.0)
    scheduler.complete("first", 2.0, kept=True)
    assert run(scheduler, facts("second", BOTH)).computed_tokens == 13


def test_of_waiting_requests_the_one_goes_first_whose_branches_are_kept(scheduler):
    run(scheduler, facts("running", FILM))
    assert scheduler.admit(facts("other", CITY), 0.0) is None
    assert scheduler.admit(facts("same", FILM), 0.0) is None
    scheduler.prefilled("running", 1.0)
    (next_one,) = scheduler.complete("running", 2.0, kept=True)
    assert next_one.query_id == "same"


def test_branches_that_a_waiting_request_needs_stay():
    scheduler = build_scheduler("one", policy="FORESIGHT", branch_tokens=9)
    for query_id, needed in (("a", branches(("film", 4))), ("b", CITY)):
        run(scheduler, facts(query_id, needed))
        scheduler.prefilled(query_id, 1.0)
        scheduler.complete(query_id, 2.0, kept=True)
    running = run(scheduler, facts("running", ()))
    assert running.dropped_branches == ()
    assert scheduler.admit(facts("sea", branches(("sea", 4))), 2.0) is None
    assert scheduler.admit(facts("film", branches(("film", 4))), 2.0) is None
    scheduler.prefilled("running", 3.0)
    (film,) = scheduler.complete("running", 4.0, kept=True)
    assert film.query_id == "film"
    scheduler.prefilled("film", 5.0)
    (sea,) = scheduler.complete("film", 6.0, kept=True)
    assert names(sea.dropped_branches) == ["city"]
    check_integrity(scheduler)


def test_a_waiting_request_that_is_given_up_is_not_waited_for(scheduler):
    run(scheduler, facts("running", FILM))
    assert scheduler.admit(facts("other", FILM), 0.0) is None
    scheduler.complete("other", 1.0, kept=False)
    scheduler.prefilled("running", 1.0)
    assert scheduler.complete("running", 2.0, kept=True) == []
    assert scheduler.branches.found("one", FILM) == 7


def test_what_was_not_computed_is_not_expected(scheduler):
    run(scheduler, facts("kept", CITY))
    scheduler.prefilled("kept", 1.0)
    scheduler.complete("kept", 2.0, kept=True)
    run(scheduler, facts("ended", (*CITY, *FILM)))
    assert scheduler.branches.found("one", BOTH) == 12
    scheduler.complete("ended", 3.0, kept=False)
    assert scheduler.branches.found("one", BOTH) == scheduler.branches.found("one", CITY) == 5


def test_what_another_prompt_computes_instead_is_expected():
    kept = build(100)
    kept.keep("one", "a", FILM, 10)
    kept.keep("one", "a", FILM[:1], 10)
    # The first prompt has ended. The second one computes the film, but no director.
    kept.take_back("one", FILM)
    check_integrity(kept)
    assert kept.found("one", FILM) == 4
    kept.keep("one", "a", branches(("film", 4), ("actor", 2)), 10)
    kept.take_back("one", CITY)
    kept.take_back("two", FILM)
    assert kept.found("one", branches(("film", 4), ("actor", 2))) == 6


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
    assert scheduler.branches.found(first.instance, FILM) == 7
    scheduler.branches.delete(["a"], TENANT)
    assert scheduler.branches.found(first.instance, FILM) == 0


def test_documents_and_branches_count_together(scheduler):
    run(scheduler, facts("first", FILM, documents="x"))
    scheduler.prefilled("first", 1.0)
    scheduler.complete("first", 2.0, kept=True)
    assert run(scheduler, facts("second", FILM, documents="xy")).computed_tokens == 10 + 20 - 7
