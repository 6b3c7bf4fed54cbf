"""A request goes to the instance with the earliest first token: cached documents count against the backlog."""

import pytest
from controller_integrity import check_integrity
from hypothesis import given
from hypothesis import strategies as st
from scheduler_cases import ask, build_scheduler, fill

from cachectl.scheduling.request import RequestKind
from cachectl.scheduling.routing import Candidate, best
from cachectl.scheduling.scheduler import Scheduler
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.grant import Grant
from protocol.errors import Overloaded, Unavailable

seconds = st.integers(0, 5).map(float)


def build(documents: str = "", max_queued: int = 1, **changes) -> Scheduler:
    """A scheduler over three instances, of which the first has computed ``documents``."""
    scheduler = build_scheduler("one", "two", "three", policy="LRU", max_queued=max_queued, window=0, **changes)
    if documents:
        fill(scheduler, documents)
        assert scheduler.tree.lookup.match("tenant", documents, "one")
    return scheduler


def occupy(scheduler: Scheduler, *seconds: int) -> list[str]:
    """Admit requests without documents that take so many seconds; the instances that run them."""
    return [instance_of(scheduler.admit(ask(f"load-{index}", "", load), 0.0)) for index, load in enumerate(seconds)]


def instance_of(grant: Grant | None) -> str:
    assert grant is not None
    return grant.instance


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([("a", 0, 9), ("b", 0, 4), ("c", 0, 7)], "b"),
        ([("a", 2, 4), ("b", 3, 2), ("c", 0, 9)], "b"),
        ([("a", 6, 1), ("b", 0, 6), ("c", 9, 0)], "b"),
        ([("a", 1, 3), ("b", 2, 2), ("c", 4, 0)], "a"),
        ([("a", 99, 99)], "a"),
    ],
    ids=["shortest prefill", "with backlog", "backlog outweighs", "first among equals", "no choice"],
)
def test_a_request_goes_to_the_instance_with_the_earliest_first_token(candidates, chosen):
    assert best(Candidate(*candidate) for candidate in candidates).instance == chosen


def test_routing_without_instances_is_refused():
    with pytest.raises(Unavailable, match="no instance"):
        best([])


@given(st.lists(st.tuples(seconds, seconds), min_size=1))
def test_routing_chooses_the_first_of_the_earliest_candidates(loads):
    candidates = [Candidate(str(index), *load) for index, load in enumerate(loads)]
    chosen = candidates.index(best(candidates))
    sums = [sum(load) for load in loads]
    assert sums[chosen] == min(sums)
    assert min(sums) not in sums[:chosen]


@given(st.lists(st.tuples(seconds, seconds), min_size=1), st.data())
def test_more_backlog_elsewhere_does_not_change_the_route(loads, data):
    candidates = [Candidate(str(index), *load) for index, load in enumerate(loads)]
    chosen = best(candidates)
    index = data.draw(st.integers(0, len(candidates) - 1))
    if candidates[index] != chosen:
        candidates[index] = candidates[index]._replace(backlog_s=candidates[index].backlog_s + 1)
        assert best(candidates) == chosen


def test_idle_instances_with_nothing_cached_are_taken_in_order():
    assert occupy(build(), 5, 5, 5) == ["one", "two", "three"]


def test_a_request_goes_to_the_instance_with_the_longest_cached_prefix():
    scheduler = build("abc", max_running=9)
    assert occupy(scheduler, 1, 1) == ["one", "two"]
    # 20 of 40 tokens are cached on "one". It takes 1 + 21 s there, and 41 s on "three", which is idle.
    assert instance_of(scheduler.admit(ask("query", "abxy"), 0.0)) == "one"


def test_documents_behind_another_prefix_do_not_count():
    scheduler = build("abc", max_running=9)
    occupy(scheduler, 1, 1)
    assert instance_of(scheduler.admit(ask("query", "bca"), 0.0)) == "three"


@pytest.mark.parametrize(("backlog_s", "instance"), [(19, "one"), (20, "one"), (21, "two")])
def test_a_backlog_can_outweigh_the_cached_prefix(backlog_s, instance):
    scheduler = build("ab", max_running=9)
    assert occupy(scheduler, backlog_s) == ["one"]
    assert instance_of(scheduler.admit(ask("query", "ab"), 0.0)) == instance


def test_a_request_waits_for_its_cached_prefix_if_that_is_sooner():
    scheduler = build("ab")
    assert occupy(scheduler, 5) == ["one"]
    assert scheduler.admit(ask("query", "ab"), 0.0) is None
    assert scheduler.instances.idle == ["two", "three"]
    [grant] = scheduler.complete("load-0", 0.0, kept=True)
    assert (grant.query_id, grant.instance) == ("query", "one")


@pytest.mark.parametrize(
    ("later_s", "question", "instance"),
    # A prefill of 21 s goes on at "one". What is left of it and the question come first, or 20 s and the question.
    [(0, 1, "two"), (0, 9, "two"), (0.5, 1, "two"), (1, 1, "one"), (2, 9, "one"), (99, 40, "one")],
)
def test_a_document_that_is_being_computed_is_waited_for_if_that_is_sooner(later_s, question, instance):
    scheduler = build(max_running=9)
    assert instance_of(scheduler.admit(ask("first", "ab"), 0.0)) == "one"
    assert instance_of(scheduler.admit(ask("next", "ab", question), later_s)) == instance


def test_only_what_the_other_computes_of_a_path_is_waited_for():
    scheduler = build(max_running=9)
    assert instance_of(scheduler.admit(ask("first", "abc"), 0.0)) == "one"
    # 31 s of which 20 are over, then 21 for "xy", against 31 s elsewhere.
    assert instance_of(scheduler.admit(ask("other end", "axy"), 20.0)) == "two"
    assert instance_of(scheduler.admit(ask("other path", "bc"), 30.0)) == "three"
    # 31 s of which 30 are over, then 11 for "d", against 41 s elsewhere.
    assert instance_of(scheduler.admit(ask("longer", "abcd"), 30.0)) == "one"


def test_what_is_computed_or_failed_is_no_longer_waited_for():
    scheduler = build(max_running=9)
    for query_id in ("failed", "stalled"):
        assert instance_of(scheduler.admit(ask(query_id, "ab"), 0.0)) == "one"
        if query_id == "failed":
            scheduler.complete(query_id, 9.0, kept=False)
    scheduler.stalled("stalled", 9.0)
    assert instance_of(scheduler.admit(ask("next", "ab"), 9.0)) == "two"


def test_a_document_that_a_waiting_request_needs_is_computed_once():
    scheduler = build(max_queued=9)
    assert occupy(scheduler, 5, 20, 20) == ["one", "two", "three"]
    assert scheduler.admit(ask("waits", "ab"), 0.0) is None
    # 5 s, 21 s for the request that waits, and 1 s: later than 20 s, sooner than 20 s and 21 s.
    assert scheduler.admit(ask("next", "ab"), 0.0) is None
    assert [len(state.queue) for state in scheduler.instances.states.values()] == [2, 0, 0]
    assert [state.backlog_s for state in scheduler.instances.states.values()] == [5 + 21 + 1, 20, 20]
    [grant] = scheduler.complete("load-0", 5.0, kept=True)
    assert scheduler.prefilled(grant.query_id, 26.0) == []
    [grant] = scheduler.complete(grant.query_id, 27.0, kept=True)
    assert (grant.query_id, grant.computed_tokens) == ("next", 1)


def test_a_waiting_request_counts_as_backlog_until_it_is_withdrawn():
    scheduler = build("ab", max_queued=9)
    assert occupy(scheduler, 5) == ["one"]
    assert scheduler.admit(ask("waits", "ab", question=20), 0.0) is None
    assert instance_of(scheduler.admit(ask("elsewhere", "ab"), 0.0)) == "two"
    scheduler.complete("waits", 0.0, kept=False)
    scheduler.complete("elsewhere", 0.0, kept=False)
    assert scheduler.admit(ask("stays", "ab"), 0.0) is None
    assert scheduler.instances.idle == ["two", "three"]


def test_a_completed_request_is_no_backlog():
    scheduler = build("ab", max_running=9)
    assert occupy(scheduler, 30, 40) == ["one", "two"]
    scheduler.complete("load-0", 0.0, kept=True)
    assert instance_of(scheduler.admit(ask("query", "ab"), 0.0)) == "one"


def test_an_instance_with_a_full_queue_is_passed_over():
    scheduler = build("ab", max_queued=0)
    assert occupy(scheduler, 1) == ["one"]
    assert instance_of(scheduler.admit(ask("query", "ab"), 0.0)) == "two"


def test_documents_in_host_memory_favour_no_instance():
    scheduler = build("ab", host=1000, max_running=9)
    first = scheduler.tree.registry.roots["tenant"].child_of("a")
    scheduler.tree.pin("tenant", "a")
    batch = MoveBatch("one")
    scheduler.tree._replication.replicate(first, batch)
    scheduler.tree.tiers.under_way.begin(batch)
    scheduler.delivered(batch, ())
    assert occupy(scheduler, 12) == ["one"]
    # With "a" in host memory, it takes 12 + 1 s on "one" and 10 + 1 s on the others, instead of 21 s.
    assert instance_of(scheduler.admit(ask("query", "ab"), 0.0)) == "two"


MANY = [f"instance-{number}" for number in range(24)]
"""More instances than are all looked at."""


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "ab", "abc", "b", "ba", "c"]), st.integers(1, 40)), max_size=60),
    st.sampled_from(["a", "ab", "abc", "bac", "d"]),
)
def test_of_many_instances_none_would_have_been_better(loads, documents):
    scheduler = build_scheduler(*MANY, max_running=3, gpu=40, host=60, load_s=0.5)
    for number, (path, question) in enumerate(loads):
        scheduler.admit(ask(f"load-{number}", path, question), 0.0)
        if number % 3 == 0 and scheduler.book.requests[f"load-{number}"].grant is not None:
            scheduler.complete(f"load-{number}", 0.0, kept=True)
    before = {name: state.backlog_s for name, state in scheduler.instances.states.items()}
    scheduled = scheduler.book.new(ask("query", documents, 5), RequestKind.QUERY)
    best = min(before[name] + scheduler.book.cached_prefix(scheduled, name).seconds for name in MANY)
    scheduler.admit(ask("query", documents, 5), 0.0)
    chosen = scheduler.book.requests["query"]
    assert before[chosen.instance] + chosen.seconds == pytest.approx(best)
    check_integrity(scheduler)


def test_a_request_is_refused_only_if_no_instance_of_many_can_take_it():
    scheduler = build_scheduler(*MANY, max_running=1, max_queued=0)
    for number in range(len(MANY)):
        assert scheduler.admit(ask(f"load-{number}", "", 9), 0.0) is not None
    with pytest.raises(Overloaded):
        scheduler.admit(ask("query", "a"), 0.0)
    scheduler.complete("load-23", 0.0, kept=False)
    assert scheduler.admit(ask("query", "a"), 0.0).instance == "instance-23"


def test_schedulers_of_the_same_instances_begin_with_others():
    shards = [ControllerShard(number, 4) for number in range(4)]
    firsts = set()
    for shard in shards:
        lone = build_scheduler(*MANY, rank=shard.rank)
        firsts.add(instance_of(lone.admit(ask("query", "a"), 0.0)))
    assert len(firsts) == 4
    assert instance_of(build_scheduler(*MANY, rank=WHOLE.rank).admit(ask("query", "a"), 0.0)) == MANY[0]
