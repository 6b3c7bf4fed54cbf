"""The scheduler keeps its bounds and the tree's locks, serves what is cached first, and gives everything back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.simulation.policies import create_simulated_policy
from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.queue import priority
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import ConfigError, InvalidRequest, Overloaded, Unavailable, UnknownInstance, UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier

TOKENS = 10


def ask(query_id: str, documents: str = "", question: int = 1, pinned: int = 0) -> Request:
    """A request whose documents have ``TOKENS`` tokens each."""
    return Request(query_id, "tenant", tuple(PathDocument(content, TOKENS) for content in documents), question, pinned)


def a_second_a_token(cached: int, new: int) -> float:
    if cached < 0 or new < 0:
        raise InvalidRequest("tokens must not be negative")
    return float(new)


def key(documents: str) -> bytes:
    """The key of the last of these documents behind the others."""
    return path_keys("tenant", documents)[-1]


def cached(grant: Grant) -> int:
    """Documents that the grant finds cached."""
    return sum(step.source is not None for step in grant.documents)


def run(scheduler: Scheduler, request: Request) -> Grant:
    """Submit a request that finds a free cache."""
    grant = scheduler.admit(request, 0.0)
    assert grant is not None
    return grant


def wait(scheduler: Scheduler, *requests: Request) -> None:
    """Submit requests that find no free cache."""
    for request in requests:
        assert scheduler.admit(request, 0.0) is None


def end(scheduler: Scheduler, query_id: str, kept: bool = True) -> list[str]:
    """Complete a request; whose turn it is."""
    return [grant.query_id for grant in scheduler.complete(query_id, 0.0, kept)]


def fill(scheduler: Scheduler, *paths: str) -> None:
    """Let paths be computed and kept."""
    for path in paths:
        run(scheduler, ask("fill", path))
        assert end(scheduler, "fill") == []


def serve_all(scheduler: Scheduler, running: str) -> list[str]:
    """Complete one request after the other on a scheduler with one cache; the order of those that waited."""
    served = []
    while turns := end(scheduler, running):
        [running] = turns
        served.append(running)
    return served


def state(scheduler: Scheduler) -> object:
    """All that can be seen of a scheduler and its tree."""
    tree = scheduler.tree
    return (
        scheduler.instances.running,
        scheduler.instances.queued,
        scheduler.instances.idle,
        scheduler.instances.largest_overtake,
        tree.grants.tick,
        sorted(tree.grants.open),
        {node.key: (node.locks, node.pins, node.frequency) for node in tree.registry.nodes.values()},
        [(cache.tier, cache.instance, cache.used, cache.pinned_tokens, cache.copies) for cache in tree.tiers],
    )


@pytest.fixture
def build():
    """Makes schedulers, and checks each when the test is over."""
    built = []

    def build(
        *instances: str,
        policy: str = "PGDSF",
        gpu: int = 1000,
        host: int = 0,
        step: StepBudget | None = None,
        load_s: float = 0.0,
        **bounds: int,
    ) -> Scheduler:
        lookahead = Lookahead()
        tree = KnowledgeTree(
            create_simulated_policy(policy, lookahead),
            Capacities(gpu, host),
            instances or ["one"],
            a_second_a_token,
            load_seconds=lambda tokens, _: tokens * load_s,
        )
        scheduler = Scheduler(tree, lookahead, **{"max_running": 1, "max_queued": 9, "window": 9} | bounds, step=step)
        built.append(scheduler)
        return scheduler

    yield build
    for scheduler in built:
        scheduler.check_integrity()
        check_integrity(scheduler.tree)


@pytest.fixture
def scheduler(build):
    return build()


@pytest.mark.parametrize("caches", [0, -1])
def test_a_scheduler_on_which_nothing_could_ever_run_is_refused(build, caches):
    with pytest.raises(ConfigError, match=str(caches)):
        build(max_running=caches)


# Grants


def test_what_was_computed_is_found_from_its_completion_on(build):
    scheduler = build(max_running=9)
    assert cached(run(scheduler, ask("computes", "abc"))) == 0
    assert cached(run(scheduler, ask("too soon", "ab"))) == 0
    scheduler.complete("computes", 0.0, kept=True)
    grant = run(scheduler, ask("finds", "abx"))
    assert [(step.key, step.source) for step in grant.documents] == [
        (key("a"), Tier.GPU),
        (key("ab"), Tier.GPU),
        (key("abx"), None),
    ]


@pytest.mark.parametrize("ends", [True, False], ids=["completes", "fails later"])
def test_what_was_computed_is_found_from_the_first_token_on(build, ends):
    scheduler = build(max_running=9)
    run(scheduler, ask("computes", "ab"))
    assert scheduler.prefilled("computes", 0.0) == []
    assert cached(run(scheduler, ask("finds", "ab"))) == 2
    scheduler.complete("computes", 0.0, kept=ends)
    assert cached(run(scheduler, ask("finds again", "ab"))) == 2


def test_what_failed_leaves_nothing(scheduler):
    run(scheduler, ask("fails", "ab"))
    scheduler.complete("fails", 0.0, kept=False)
    assert not scheduler.tree.registry.nodes
    assert scheduler.tree.tiers.gpu("one").used == 0


@pytest.mark.parametrize("tell", ["prefilled", "complete"])
def test_a_lost_copy_is_gone_with_what_stands_behind_it(scheduler, tell):
    fill(scheduler, "abc")
    run(scheduler, ask("loses", "abc"))
    if tell == "prefilled":
        scheduler.prefilled("loses", 0.0, [(key("ab"), Tier.GPU)])
        end(scheduler, "loses")
    else:
        scheduler.complete("loses", 0.0, kept=True, lost=[(key("ab"), Tier.GPU)])
    assert cached(run(scheduler, ask("finds", "abc"))) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_copy_that_another_request_reports_lost_is_gone_and_one_that_nobody_knows_is_no_matter(scheduler, kept):
    fill(scheduler, "ab", "c")
    run(scheduler, ask("tells", "c"))
    scheduler.complete("tells", 0.0, kept, lost=[(key("a"), Tier.GPU), (b"nobody's", Tier.DISK)])
    assert cached(run(scheduler, ask("again", "ab"))) == 0


def test_a_request_that_waits_can_have_lost_nothing(build):
    scheduler = build(max_queued=1)
    fill(scheduler, "a")
    run(scheduler, ask("runs"))
    wait(scheduler, ask("waits", "a"))
    scheduler.complete("waits", 0.0, kept=True, lost=[(key("a"), Tier.GPU)])
    end(scheduler, "runs")
    assert cached(run(scheduler, ask("again", "a"))) == 1


def test_the_queries_that_name_a_document_run_or_wait(build):
    scheduler = build(max_running=2)
    run(scheduler, ask("runs", "ab"))
    run(scheduler, ask("other", "c"))
    wait(scheduler, ask("waits", "b"))
    assert scheduler.book.naming({"b", "x"}, None) == scheduler.book.naming(["b"], "tenant") == {"runs", "waits"}
    assert scheduler.book.naming(["b"], "somebody") == scheduler.book.naming([], None) == set()


def test_a_lost_copy_that_made_the_request_fail_is_gone_too(scheduler):
    fill(scheduler, "abc")
    run(scheduler, ask("fails", "abc"))
    scheduler.complete("fails", 0.0, kept=False, lost=[(key("ab"), Tier.GPU)])
    assert cached(run(scheduler, ask("finds", "abc"))) == 1


# Refusals


def test_more_than_may_wait_are_refused(build):
    scheduler = build("one", "two", max_queued=1)
    for number in range(4):
        scheduler.admit(ask(str(number), "a"), 0.0)
    before = state(scheduler)
    with pytest.raises(Overloaded, match="2 queries are running and 2 waiting"):
        scheduler.admit(ask("refused", "a"), 0.0)
    assert state(scheduler) == before


def test_a_place_that_is_free_needs_no_place_in_the_queue(build):
    scheduler = build(max_queued=0)
    run(scheduler, ask("runs"))
    with pytest.raises(Overloaded):
        scheduler.admit(ask("refused"), 0.0)
    end(scheduler, "runs")
    run(scheduler, ask("next"))


def test_without_an_instance_nothing_is_taken_on(scheduler):
    scheduler.lifecycle.remove("one")
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
        (lambda scheduler: scheduler.lifecycle.remove("unknown"), UnknownInstance),
    ],
    ids=[
        "runs already",
        "waits already",
        "negative question",
        "empty document",
        "completed, but never submitted",
        "completed twice",
        "prefilled, but never submitted",
        "prefilled after its end",
        "prefilled while it waits",
        "stalled while it waits",
        "unknown instance removed",
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(scheduler, refused, error):
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
def test_a_document_whose_length_contradicts_the_tree_is_refused_and_changes_nothing(scheduler, tokens):
    fill(scheduler, "a")
    before = state(scheduler)
    with pytest.raises(InvalidRequest):
        scheduler.admit(Request("contradicts", "tenant", (PathDocument("a", tokens),), 1), 0.0)
    assert state(scheduler) == before
    scheduler.check_integrity()
    run(scheduler, ask("contradicts", "a"))


@pytest.mark.parametrize("tokens", [2, 12])
def test_two_who_wait_and_contradict_each_other_in_a_documents_length_harm_nobody_else(scheduler, tokens):
    run(scheduler, ask("runs"))
    wait(scheduler, ask("first", "a"), Request("second", "tenant", (PathDocument("a", tokens),), 1), ask("patient"))
    assert {"first", "patient"} <= set(serve_all(scheduler, "runs"))


# The order of turns


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


# One step's prefills


@pytest.fixture
def steps(build):
    """A scheduler of an engine whose steps take 30 tokens, 20 of one prompt; "a" and "ab" are cached."""
    scheduler = build(max_running=9, step=StepBudget(30, 20))
    fill(scheduler, "ab")
    return scheduler


def test_prefills_run_at_once_as_far_as_a_step_takes_them(steps):
    run(steps, ask("long", "xyz"))
    run(steps, ask("short", "ac", question=0))
    wait(steps, ask("too much", "ab"))
    assert steps.prefilled("short", 0.0)[0].query_id == "too much"
    wait(steps, ask("long too", "uvw"))
    assert [grant.query_id for grant in steps.prefilled("long", 0.0)] == ["long too"]
    # What decodes takes nothing of a step, and its end gives nothing free again.
    assert end(steps, "long") == end(steps, "short") == []


def test_a_short_prefill_goes_past_a_long_one_that_waits(steps):
    run(steps, ask("long", "xyz"))
    wait(steps, ask("long too", "uvw"))
    run(steps, ask("short", "ab"))
    assert end(steps, "long") == ["long too"]
    assert steps.instances.largest_overtake == 1


def test_a_short_prefill_goes_past_no_more_often_than_the_window_allows(build):
    scheduler = build(max_running=9, window=1, step=StepBudget(30, 20))
    fill(scheduler, "ab")
    run(scheduler, ask("long", "xyz"))
    wait(scheduler, ask("long too", "uvw"))
    run(scheduler, ask("short", "ab"))
    wait(scheduler, ask("short too", "ab"))
    assert end(scheduler, "short") == []
    assert end(scheduler, "long") == ["long too", "short too"]


def test_a_prefill_that_no_step_takes_beside_another_runs_alone(build):
    scheduler = build(max_running=9, step=StepBudget(10, 20))
    run(scheduler, ask("first", "xyz"))
    wait(scheduler, ask("second", "ab"), ask("third", question=0))
    assert end(scheduler, "first", kept=False) == ["second"]
    assert [grant.query_id for grant in scheduler.prefilled("second", 0.0)] == ["third"]


def test_who_gives_up_in_front_lets_those_behind_start(steps):
    run(steps, ask("long", "xyz"))
    wait(steps, ask("long too", "uvw"), ask("shorter, with nothing cached either", "c", question=0))
    assert end(steps, "long too") == ["shorter, with nothing cached either"]


def test_what_loads_for_longer_than_it_computes_takes_nothing_of_a_step(build):
    scheduler = build(gpu=20, host=1000, max_running=9, step=StepBudget(30, 20), load_s=0.9)
    fill(scheduler, "ab", "cd")
    loads = run(scheduler, ask("loads 18 s, computes 11 s", "abe"))
    assert [step.source for step in loads.documents] == [Tier.HOST, Tier.HOST, None]
    run(scheduler, ask("long", "xyz"))
    wait(scheduler, ask("long too", "uvw"))
    assert end(scheduler, "loads 18 s, computes 11 s") == []
    assert end(scheduler, "long") == ["long too"]


def test_whose_first_token_is_overdue_keeps_nobody_waiting(steps):
    run(steps, ask("lost", "xyz"))
    wait(steps, ask("waits", "uvw"))
    assert [grant.query_id for grant in steps.stalled("lost", 0.0)] == ["waits"]
    assert steps.stalled("lost", 0.0) == end(steps, "lost") == []


def test_without_a_place_in_the_queue_only_what_fits_now_is_taken_on(build):
    scheduler = build(max_running=9, max_queued=0, step=StepBudget(30, 20))
    run(scheduler, ask("long", "xyz"))
    with pytest.raises(Overloaded):
        scheduler.admit(ask("long too", "uvw"), 0.0)
    run(scheduler, ask("short", "a", question=0))


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


# What is idle and what is cached


def test_an_instance_is_idle_while_nothing_runs_on_it(build):
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


# Instances come and go


def test_a_lost_instance_gives_its_requests_back_and_they_can_be_submitted_again(build):
    scheduler = build("one", "two", max_running=1)
    fill(scheduler, "ab")
    requests = [ask("on one", "abc"), ask("on two"), ask("waits for one", "abd")]
    assert run(scheduler, requests[0]).instance == "one"
    assert run(scheduler, requests[1]).instance == "two"
    wait(scheduler, requests[2])
    returned = scheduler.lifecycle.remove("one")
    assert returned == [requests[0], requests[2]]
    assert (scheduler.instances.running, scheduler.instances.queued) == (1, 0)
    assert not scheduler.tree.registry.nodes
    wait(scheduler, *returned)
    assert serve_all(scheduler, "on two") == ["on one", "waits for one"]


def test_a_request_of_a_lost_instance_cannot_complete(build):
    scheduler = build("one", "two")
    run(scheduler, ask("query", "a"))
    scheduler.lifecycle.remove("one")
    with pytest.raises(UnknownPlan):
        scheduler.complete("query", 0.0, kept=True)


def test_a_new_instance_takes_requests_and_has_nothing_cached(build):
    scheduler = build()
    fill(scheduler, "a")
    run(scheduler, ask("runs", "a", question=50))
    scheduler.lifecycle.add("two")
    grant = run(scheduler, ask("query", "a"))
    assert (grant.instance, cached(grant)) == ("two", 0)


def test_an_instance_that_is_known_goes_on_when_added_again(build):
    scheduler = build()
    fill(scheduler, "a")
    run(scheduler, ask("runs", "a"))
    wait(scheduler, ask("waits", "a"))
    before = state(scheduler)
    scheduler.lifecycle.add("one")
    assert state(scheduler) == before


def test_an_instance_that_comes_again_is_empty(build):
    scheduler = build("one", "two")
    fill(scheduler, "a")
    scheduler.lifecycle.remove("one")
    scheduler.lifecycle.add("one")
    assert scheduler.instances.idle == ["two", "one"]
    assert cached(run(scheduler, ask("query", "a"))) == 0


def test_what_lies_in_shared_memory_outlives_its_instance(build):
    scheduler = build("one", gpu=20, host=100)
    fill(scheduler, "ab", "cd")
    scheduler.lifecycle.remove("one")
    scheduler.lifecycle.add("two")
    grant = run(scheduler, ask("query", "ab"))
    assert [step.source for step in grant.documents] == [Tier.HOST, Tier.HOST]


# Anything in any order

# Few prefixes, so that requests share them; "s" is a system prompt.
PATHS = ["", "a", "ab", "abc", "abd", "ba", "c", "s", "sa", "sab", "sb", "sbd"]
LENGTHS = {"s": 2, "a": 1, "b": 2, "c": 3, "d": 5}


class SchedulerMachine(RuleBasedStateMachine):
    """Requests, their ends and instances in any order, on tiers too small for everything.

    The model knows who runs and who waits, in order of arrival, and how often each that waits was overtaken.
    """

    @initialize(
        policy=st.sampled_from(policy_names()),
        gpu=st.integers(0, 16),
        host=st.integers(0, 16),
        max_running=st.integers(1, 4),
        max_queued=st.integers(0, 6),
        window=st.integers(0, 3),
        instances=st.sampled_from([["one"], ["one", "two"]]),
        step=st.sampled_from([None, StepBudget(6, 4), StepBudget(3, 5)]),
    )
    def build(self, policy, gpu, host, max_running, max_queued, window, instances, step):
        self.lookahead = Lookahead()
        self.tree = KnowledgeTree(
            create_policy(policy, self.lookahead),
            Capacities(gpu, host, 10),
            instances,
            lambda cached, new: 0.01 + new * (1 + cached / 10),
        )
        self.scheduler = Scheduler(self.tree, self.lookahead, max_running, max_queued, window, step)
        self.step = step
        self.max_running, self.max_queued, self.window = max_running, max_queued, window
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Grant] = {}
        self.waiting: dict[str, int] = {}
        self.returned: list[Request] = []
        self.queries = 0
        self.now = 0.0

    @rule(
        paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=4), other=st.booleans(), question=st.integers(0, 3)
    )
    def admit(self, paths, other, question):
        for path in paths:
            self.queries += 1
            documents = tuple(PathDocument(content, LENGTHS[content]) for content in path)
            namespace = "tenant-b" if other else "tenant-a"
            self.take_on(Request(str(self.queries), namespace, documents, question, int(path[:1] == "s")))
            self.holds_together()

    @precondition(lambda self: self.returned)
    @rule()
    def submit_again(self):
        self.take_on(self.returned.pop())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def prefill(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.running)))
        self.turns_of(self.scheduler.prefilled(query_id, self.now, self.some_lost(data, query_id)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stall(self, data):
        self.turns_of(self.scheduler.stalled(data.draw(st.sampled_from(sorted(self.running))), self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), kept=st.sampled_from([True, True, True, False]))
    def complete(self, data, kept):
        query_id = data.draw(st.sampled_from(sorted(self.running)))
        lost = self.some_lost(data, query_id)
        del self.running[query_id]
        self.turns_of(self.scheduler.complete(query_id, self.now, kept, lost))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[query_id]
        granted = self.scheduler.complete(query_id, self.now, kept=False)
        assert self.step or not granted
        self.turns_of(granted)

    @rule(content=st.sampled_from("sabcd"))
    def delete(self, content):
        self.tree.delete(content)

    @rule(data=st.data())
    def refuse(self, data):
        known = [*self.running, *self.waiting]
        with pytest.raises(UnknownPlan):
            self.scheduler.complete(str(self.queries + 1), self.now, kept=True)
        if known:
            with pytest.raises(InvalidRequest):
                self.scheduler.admit(self.requests[data.draw(st.sampled_from(sorted(known)))], self.now)

    @rule(instance=st.sampled_from(["one", "two", "three"]))
    def gain_instance(self, instance):
        self.scheduler.lifecycle.add(instance)

    @precondition(lambda self: len(self.waiting) > 3 or not self.running)
    @precondition(lambda self: self.tree.tiers.gpus)
    @rule(data=st.data())
    def lose_instance(self, data):
        instance = data.draw(st.sampled_from(sorted(self.tree.tiers.gpus)))
        ran = [query_id for query_id, grant in self.running.items() if grant.instance == instance]
        lost = self.scheduler.lifecycle.remove(instance)
        assert {request.query_id for request in lost} >= set(ran)
        for request in lost:
            assert request == self.requests[request.query_id]
            if self.running.pop(request.query_id, None) is None:
                del self.waiting[request.query_id]
        self.returned += lost

    def take_on(self, request):
        self.now += 1
        try:
            grant = self.scheduler.admit(request, self.now)
        except Overloaded:
            instances = len(self.tree.tiers.gpus)
            assert len(self.waiting) == instances * self.max_queued
            assert self.step or len(self.running) == instances * self.max_running
        except Unavailable:
            assert not self.tree.tiers.gpus
        else:
            self.requests[request.query_id] = request
            self.waiting[request.query_id] = 0
            if grant is not None:
                self.turns_of([grant])

    def granted(self, grant):
        request = self.requests[grant.query_id]
        assert [step.tokens for step in grant.documents] == [document.tokens for document in request.documents]
        assert [step.key for step in grant.documents] == path_keys(
            request.namespace, [document.content for document in request.documents]
        )
        self.running[grant.query_id] = grant

    def turns_of(self, grants):
        for grant in grants:
            arrived = list(self.waiting).index(grant.query_id)
            for older in list(self.waiting)[:arrived]:
                if self.line_of(older) == grant.instance:
                    self.waiting[older] += 1
            assert self.waiting.pop(grant.query_id) <= self.window
            self.granted(grant)

    def line_of(self, query_id):
        return self.scheduler.book.requests[query_id].instance

    def some_lost(self, data, query_id):
        steps = [step for step in self.running[query_id].documents if step.source or step.kept]
        if not steps or data.draw(st.integers(0, 4)):
            return []
        step = data.draw(st.sampled_from(steps))
        return [(step.key, data.draw(st.sampled_from([step.source or step.kept, Tier.HOST])))]

    @invariant()
    def holds_together(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        check_integrity(self.tree)
        assert self.scheduler.instances.running == len(self.running)
        assert self.scheduler.instances.queued == len(self.waiting) == len(self.lookahead)
        assert all(overtaken <= self.window for overtaken in self.waiting.values())
        assert self.scheduler.instances.largest_overtake <= self.window
        for query_id in self.waiting:
            queue = self.scheduler.instances.states[self.line_of(query_id)].queue
            told = -queue._entry(query_id)[0]
            assert told >= priority(*self.scheduler.book.progress(query_id)), "a rise was not told"

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        while self.running:
            query_id = next(iter(self.running))
            del self.running[query_id]
            self.turns_of(self.scheduler.complete(query_id, self.now, kept=True))
        assert not self.waiting
        self.holds_together()
        assert self.scheduler.instances.idle == list(self.tree.tiers.gpus)
        assert not self.tree.grants.open
        assert not self.tree.registry.detached
        assert not any(node.locks for node in self.tree.registry.nodes.values())
        assert all(copy.held for node in self.tree.registry.nodes.values() for copy in node.copies.values())
        assert not any(state.backlog_s for state in self.scheduler.instances.states.values())


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
