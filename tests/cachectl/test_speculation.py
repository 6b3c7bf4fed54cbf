"""Speculation starts where there is room, follows the documents, and never outlives them."""

from itertools import groupby
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.speculation import decide
from protocol.errors import InvalidRequest
from protocol.plans import SpeculationDecision

START, KEEP, DROP, WAIT = SpeculationDecision


class Generation(NamedTuple):
    """A speculative generation, and the stage (from 1) after which it started."""

    documents: tuple[str, ...]
    started: int


class Step(NamedTuple):
    """What was decided after a stage, and what then runs."""

    decision: SpeculationDecision
    running: Generation | None


def walk(stages, pool_sizes, max_prefill_bs) -> list[Step]:
    """One query's search, stage by stage, by a caller that does as it is told."""
    steps: list[Step] = []
    running: Generation | None = None
    for stage, (documents, pool_size) in enumerate(zip(stages, pool_sizes, strict=True), start=1):
        on = running.documents if running else None
        decision = decide(documents, on, pool_size, max_prefill_bs, final=stage == len(stages))
        if decision is START:
            running = Generation(tuple(documents), stage)
        elif decision is DROP:
            assert running is not None
            running = None
        steps.append(Step(decision, running))
    return steps


documents = st.lists(st.sampled_from("abc"), max_size=2).map(tuple)
states = {
    "candidates": documents,
    "running": st.none() | documents,
    "pool_size": st.integers(0, 4),
    "max_prefill_bs": st.integers(0, 4),
    "final": st.booleans(),
}
# Searches whose documents stay for a stage or more, as those of real queries do.
searches = st.lists(
    st.tuples(st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]), st.integers(1, 3)), min_size=1, max_size=5
).map(lambda runs: [found for found, stages in runs for _ in range(stages)])


def test_figure_11_of_ragcache():
    stages = [("D1", "D3"), ("D1", "D2"), ("D1", "D2"), ("D1", "D2")]
    assert walk(stages, [0, 0, 0, 0], max_prefill_bs=4) == [
        (START, (("D1", "D3"), 1)),
        (START, (("D1", "D2"), 2)),
        (KEEP, (("D1", "D2"), 2)),
        (KEEP, (("D1", "D2"), 2)),
    ]


@pytest.mark.parametrize(
    ("candidates", "running", "pool_size", "final", "decision"),
    [
        ("ab", None, 0, False, START),
        ("ab", None, 1, False, START),
        ("ab", None, 2, False, WAIT),
        ("ab", "ac", 1, False, START),
        ("ab", "ac", 2, False, DROP),
        ("ab", "ab", 0, False, KEEP),
        ("ab", "ab", 2, False, KEEP),
        ("ab", "ba", 1, False, START),
        ("", None, 0, False, WAIT),
        ("", "ab", 0, False, DROP),
        ("ab", "ab", 2, True, KEEP),
        ("ab", "ac", 0, True, DROP),
        ("ab", None, 0, True, WAIT),
        ("", None, 0, True, WAIT),
    ],
)
def test_decides_with_room_for_two(candidates, running, pool_size, final, decision):
    assert decide(candidates, running, pool_size, 2, final) is decision


def test_a_query_may_replace_its_own_speculation_in_the_last_place():
    assert decide(["b"], ["a"], pool_size=0, max_prefill_bs=1, final=False) is START


def test_documents_are_compared_by_their_keys_whatever_holds_them():
    assert decide(["a", "b"], ("a", "b"), pool_size=0, max_prefill_bs=1, final=False) is KEEP


@given(**states)
def test_starts_never_at_a_full_pool_nor_on_nothing_nor_on_final_documents(
    candidates, running, pool_size, max_prefill_bs, final
):
    if decide(candidates, running, pool_size, max_prefill_bs, final) is START:
        assert pool_size < max_prefill_bs
        assert candidates
        assert not final


@given(**states)
def test_keeps_exactly_what_runs_on_the_same_documents(candidates, running, pool_size, max_prefill_bs, final):
    kept = decide(candidates, running, pool_size, max_prefill_bs, final) is KEEP
    assert kept == (max_prefill_bs > 0 and running == candidates)


@given(**states)
def test_drops_only_what_runs_and_waits_only_where_nothing_does(candidates, running, pool_size, max_prefill_bs, final):
    decision = decide(candidates, running, pool_size, max_prefill_bs, final)
    assert decision is not DROP or running is not None
    assert decision is not WAIT or running is None


@given(**states)
def test_a_bound_of_zero_switches_speculation_off(candidates, running, pool_size, max_prefill_bs, final):
    decision = decide(candidates, running, pool_size, 0, final)
    assert decision is (WAIT if running is None else DROP)


@given(st.data(), searches, st.integers(0, 3))
def test_whatever_runs_runs_on_the_newest_documents(data, stages, max_prefill_bs):
    pool_sizes = data.draw(st.lists(st.integers(0, 4), min_size=len(stages), max_size=len(stages)))
    for found, step in zip(stages, walk(stages, pool_sizes, max_prefill_bs), strict=True):
        assert step.running is None or step.running.documents == found


@given(searches, st.integers(1, 4))
def test_with_room_the_final_documents_were_started_at_the_first_stage_they_held_from(stages, max_prefill_bs):
    last = walk(stages, [max_prefill_bs - 1] * len(stages), max_prefill_bs)[-1]
    *earlier, (final_documents, unchanged) = [(found, len(list(same))) for found, same in groupby(stages)]
    held_from = sum(length for _, length in earlier) + 1
    if unchanged == 1:
        assert last == ((DROP if earlier else WAIT), None)
    else:
        assert last == (KEEP, (final_documents, held_from))


@pytest.mark.parametrize("blamed", ["pool_size", "max_prefill_bs"])
def test_refuses_negative_counts(blamed):
    counts = {"pool_size": 0, "max_prefill_bs": 1, blamed: -1}
    with pytest.raises(InvalidRequest) as caught:
        decide(["a"], None, **counts, final=False)
    assert caught.value.param == blamed
