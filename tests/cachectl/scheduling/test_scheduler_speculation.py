"""Speculations fill room that would stay empty, are never in a request's way, and end like anything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.scheduling.speculative_slots import SpeculativeSlots
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.errors import InvalidRequest, Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier

TOKENS = 10
STEP = StepBudget(30, 20)
"""Three documents of which nothing is cached, two of them of one prompt."""


def ask(query_id: str, documents: str = "", question: int = 0) -> Request:
    """A request whose documents have ``TOKENS`` tokens each."""
    return Request(query_id, "tenant", tuple(PathDocument(content, TOKENS) for content in documents), question)


def build_scheduler(*instances: str, gpu=1000, host=0, max_running=9, max_queued=9, step=STEP, load_s=0.0) -> Scheduler:
    lookahead = Lookahead()
    tree = KnowledgeTree(
        create_policy("PGDSF", lookahead),
        Capacities(gpu, host),
        instances or ["one"],
        lambda cached, new: float(new),
        load_seconds=lambda tokens, _: tokens * load_s,
    )
    return Scheduler(tree, lookahead, max_running, max_queued, 9, step)


def run(scheduler: Scheduler, request: Request) -> list[str]:
    """Submit a request that starts at once; what it ends."""
    grant = scheduler.admit(request, 0.0)
    assert grant is not None
    scheduler.check_integrity()
    return grant.ends


def wait(scheduler: Scheduler, request: Request) -> None:
    """Submit a request that does not start."""
    assert scheduler.admit(request, 0.0) is None
    scheduler.check_integrity()


def guess(scheduler: Scheduler, *requests: Request) -> None:
    """Speculate where there is room."""
    for request in requests:
        assert scheduler.speculative.has_room()
        grant = scheduler.speculative.admit(request, 0.0)
        assert grant is not None
        assert grant.ends == []
        scheduler.check_integrity()


def going_on(scheduler: Scheduler) -> list[str]:
    return [query_id for query_id in scheduler.tree.grants.open if scheduler.speculative.runs(query_id)]


def state(scheduler: Scheduler) -> object:
    """All that can be seen of a scheduler and its tree."""
    tree = scheduler.tree
    return (
        scheduler.instances.running,
        scheduler.instances.queued,
        scheduler.instances.idle,
        scheduler.speculative.has_room(),
        going_on(scheduler),
        tree.grants.tick,
        sorted(tree.grants.open),
        {node.key: (node.locks, node.frequency) for node in tree.registry.nodes.values()},
        [(cache.tier, cache.instance, cache.used, cache.copies) for cache in tree.tiers],
    )


@pytest.fixture
def build():
    """Makes schedulers, and checks each when the test is over."""
    built = []

    def build(*instances: str, **changes) -> Scheduler:
        built.append(build_scheduler(*instances, **changes))
        return built[-1]

    yield build
    for scheduler in built:
        scheduler.check_integrity()
        check_integrity(scheduler.tree)


@pytest.fixture
def scheduler(build):
    return build()


# Room


def test_there_is_room_while_a_step_has_tokens_left(scheduler):
    run(scheduler, ask("request", "ab"))
    assert scheduler.speculative.has_room()
    guess(scheduler, ask("guess", "c"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask("too much", "", question=1), 0.0) is None
    scheduler.prefilled("request", 0.0)
    guess(scheduler, ask("next", "xy"))
    assert not scheduler.speculative.has_room()


def test_what_would_not_fit_into_the_step_does_not_start_and_leaves_nothing(scheduler):
    run(scheduler, ask("request", "ab"))
    before = state(scheduler)
    assert scheduler.speculative.admit(ask("guess", "xy"), 0.0) is None
    assert state(scheduler) == before
    guess(scheduler, ask("guess", "x"))


def test_what_no_step_takes_beside_another_starts_alone(build):
    scheduler = build(step=StepBudget(10, 20))
    guess(scheduler, ask("guess", "ab"))
    assert not scheduler.speculative.has_room()


def test_without_steps_the_places_are_the_room(build):
    scheduler = build(step=None, max_running=2)
    run(scheduler, ask("request", "abc"))
    guess(scheduler, ask("guess", "xyz"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask("another"), 0.0) is None


def test_the_places_are_room_beside_steps_too(build):
    scheduler = build(max_running=1)
    guess(scheduler, ask("guess"))
    assert not scheduler.speculative.has_room()


@pytest.mark.parametrize("bounds", [{"max_running": 1}, {"step": StepBudget(10, 10)}], ids=["cache", "step"])
def test_the_room_of_a_speculation_that_would_end_is_room(build, bounds):
    scheduler = build(**bounds)
    guess(scheduler, ask("guess", "a"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.has_room(besides="guess")
    assert not scheduler.speculative.has_room(besides="somebody")


def test_the_room_of_a_request_is_nobodys(build):
    scheduler = build(max_running=1)
    run(scheduler, ask("request"))
    assert not scheduler.speculative.has_room(besides="request")


def test_no_speculation_starts_beside_a_request_that_waits(scheduler):
    run(scheduler, ask("long", "ab"))
    wait(scheduler, ask("waits", "xy"))
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask("guess", question=1), 0.0) is None
    scheduler.prefilled("long", 0.0)
    guess(scheduler, ask("guess", question=1))


def test_a_speculation_starts_on_the_instance_that_has_room(build):
    scheduler = build("one", "two", max_running=1)
    run(scheduler, ask("request"))
    guess(scheduler, ask("guess", "a"))
    assert scheduler.tree.grants.open["guess"].instance == "two"
    assert not scheduler.speculative.has_room()


def test_without_an_instance_there_is_no_room(scheduler):
    scheduler.lifecycle.remove("one")
    assert not scheduler.speculative.has_room()
    assert scheduler.speculative.admit(ask("guess"), 0.0) is None


def test_a_speculation_finds_what_is_cached_and_what_it_computed_is_found(scheduler):
    guess(scheduler, ask("first", "ab"))
    scheduler.prefilled("first", 0.0)
    grant = scheduler.speculative.admit(ask("second", "abc"), 0.0)
    assert [step.source for step in grant.documents] == [Tier.GPU, Tier.GPU, None]


@pytest.mark.parametrize(
    ("request_", "known"),
    [
        (ask("guess", "x"), "guess"),
        (ask("request", "x"), "request"),
        (ask("new", "x", question=-1), None),
        (Request("new", "tenant", (PathDocument("a", 7),), 0), None),
    ],
    ids=["speculates already", "runs already", "negative question", "another length than the tree's"],
)
def test_what_cannot_be_is_refused_and_changes_nothing(scheduler, request_, known):
    run(scheduler, ask("request", "a"))
    guess(scheduler, ask("guess", "b"))
    scheduler.prefilled("request", 0.0)
    before = state(scheduler)
    with pytest.raises(InvalidRequest, match=known):
        scheduler.speculative.admit(request_, 0.0)
    with pytest.raises(InvalidRequest, match=known):
        scheduler.admit(request_, 0.0)
    assert state(scheduler) == before


# Giving way


def test_requests_have_every_place(build):
    scheduler = build(step=None, max_running=3)
    guess(scheduler, *(ask(query_id) for query_id in "abc"))
    assert [run(scheduler, ask(query_id)) for query_id in "xyz"] == [["c"], ["b"], ["a"]]
    wait(scheduler, ask("too many"))


def test_requests_have_the_whole_step(scheduler):
    guess(scheduler, *(ask(query_id, query_id) for query_id in "abc"))
    assert run(scheduler, ask("request", "xy")) == ["c", "b"]
    assert run(scheduler, ask("another", "z")) == ["a"]
    wait(scheduler, ask("too much", "w"))


def test_a_request_that_fits_beside_them_ends_none(scheduler):
    guess(scheduler, ask("a", "a"), ask("b", "b"))
    assert run(scheduler, ask("request", "x")) == []
    assert going_on(scheduler) == ["a", "b"]


def test_a_request_that_takes_nothing_of_a_step_ends_none_for_its_sake(build):
    scheduler = build(gpu=20, host=1000, load_s=0.9)
    for path in ("ab", "cd"):
        run(scheduler, ask("fill", path))
        scheduler.complete("fill", 0.0, kept=True)
    guess(scheduler, ask("x", "x", question=10), ask("y", "y"))
    assert not scheduler.speculative.has_room()
    assert run(scheduler, ask("loads 18 s, computes 11 s", "ab", question=11)) == []


def test_the_latest_gives_way_first_and_no_more_than_the_request_needs(scheduler):
    guess(scheduler, *(ask(name, question=5) for name in "abcd"))
    assert run(scheduler, ask("request", "x", question=9)) == ["d", "c"]
    assert going_on(scheduler) == ["a", "b"]


def test_they_give_way_to_a_request_that_waited_when_its_turn_comes(scheduler):
    run(scheduler, ask("long", "a", question=5))
    guess(scheduler, *(ask(name, question=5) for name in "bcd"))
    wait(scheduler, ask("waits", "xy"))
    assert going_on(scheduler) == ["b", "c", "d"]
    [grant] = scheduler.prefilled("long", 0.0)
    assert (grant.query_id, grant.ends) == ("waits", ["d"])


def test_a_speculation_with_its_first_token_is_not_ended_for_the_steps_sake(scheduler):
    guess(scheduler, ask("prefills", "a"), ask("decodes", "bc"))
    scheduler.prefilled("decodes", 0.0)
    assert run(scheduler, ask("request", "xy", question=1)) == []
    assert run(scheduler, ask("another", "z")) == ["prefills"]
    assert going_on(scheduler) == ["decodes"]


def test_a_speculation_whose_first_token_is_overdue_is_not_ended_for_the_steps_sake(scheduler):
    guess(scheduler, ask("lost", "ab"))
    assert scheduler.stalled("lost", 0.0) == []
    assert scheduler.speculative.has_room()
    assert run(scheduler, ask("request", "xyz")) == []
    assert run(scheduler, ask("another", "z")) == []


def test_a_speculation_with_its_first_token_gives_its_place(build):
    scheduler = build(max_running=1)
    guess(scheduler, ask("decodes", "a"))
    scheduler.prefilled("decodes", 0.0)
    assert run(scheduler, ask("request")) == ["decodes"]


def test_only_those_of_the_requests_instance_give_way(build):
    scheduler = build("one", "two", max_running=1)
    guess(scheduler, ask("on one", question=2), ask("on two", question=1))
    assert {query_id: scheduler.tree.grants.open[query_id].instance for query_id in ("on one", "on two")} == {
        "on one": "one",
        "on two": "two",
    }
    assert run(scheduler, ask("request")) == ["on one"]
    assert going_on(scheduler) == ["on two"]


def test_speculations_take_nobodys_place_in_the_queue(build):
    scheduler = build(max_running=1, max_queued=0)
    guess(scheduler, ask("guess"))
    assert run(scheduler, ask("request")) == ["guess"]
    with pytest.raises(Overloaded, match="1 queries are running and 0 waiting"):
        scheduler.admit(ask("refused"), 0.0)


# Confirmed, withdrawn, completed


def test_a_confirmed_speculation_counts_as_a_request(scheduler):
    guess(scheduler, ask("guess", "ab"))
    assert scheduler.instances.running == 0
    scheduler.speculative.confirm("guess")
    assert scheduler.instances.running == 1
    assert going_on(scheduler) == []
    wait(scheduler, ask("waits for the step", "xy"))
    assert [grant.query_id for grant in scheduler.prefilled("guess", 0.0)] == ["waits for the step"]


def test_a_confirmed_speculation_has_its_place_to_itself(build):
    scheduler = build(step=None, max_running=1)
    guess(scheduler, ask("guess"))
    scheduler.speculative.confirm("guess")
    wait(scheduler, ask("waits"))
    assert [grant.query_id for grant in scheduler.complete("guess", 0.0, kept=True)] == ["waits"]


def test_what_is_confirmed_after_its_first_token_takes_nothing_of_the_step(scheduler):
    guess(scheduler, ask("guess", "ab"))
    scheduler.prefilled("guess", 0.0)
    scheduler.speculative.confirm("guess")
    run(scheduler, ask("a", "xy"))
    run(scheduler, ask("b", "z"))
    assert scheduler.instances.running == 3


def test_a_withdrawn_speculation_leaves_its_room_and_keeps_its_grant(build):
    scheduler = build(max_running=1)
    guess(scheduler, ask("guess", "ab"))
    scheduler.speculative.withdraw("guess")
    assert (going_on(scheduler), list(scheduler.tree.grants.open)) == ([], ["guess"])
    assert scheduler.speculative.has_room()
    assert run(scheduler, ask("request", "xyz")) == []


@pytest.mark.parametrize("act", [SpeculativeSlots.confirm, SpeculativeSlots.withdraw], ids=["confirm", "withdraw"])
@pytest.mark.parametrize("query_id", ["request", "waits", "confirmed", "withdrawn", "gave way", "ended", "unknown"])
def test_only_what_goes_on_is_confirmed_or_withdrawn(build, act, query_id):
    scheduler = build(step=None, max_running=3)
    guess(scheduler, *(ask(name) for name in ("ended", "withdrawn", "confirmed")))
    scheduler.complete("ended", 0.0, kept=True)
    scheduler.speculative.withdraw("withdrawn")
    scheduler.speculative.confirm("confirmed")
    run(scheduler, ask("request"))
    guess(scheduler, ask("gave way"))
    assert run(scheduler, ask("another")) == ["gave way"]
    wait(scheduler, ask("waits"))
    before = state(scheduler)
    with pytest.raises(UnknownPlan, match=query_id):
        act(scheduler.speculative, query_id)
    assert not scheduler.speculative.runs(query_id)
    assert state(scheduler) == before


ENDS = {
    "going on": lambda scheduler: None,
    "withdrawn": lambda scheduler: scheduler.speculative.withdraw("guess"),
    "gave way": lambda scheduler: run(scheduler, ask("in its way", "xy")),
    "confirmed": lambda scheduler: scheduler.speculative.confirm("guess"),
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_speculation_completes_once_in_any_state(build, end, prefilled, kept):
    scheduler = build(max_running=1)
    guess(scheduler, ask("guess", "ab"))
    if prefilled:
        scheduler.prefilled("guess", 0.0)
    ENDS[end](scheduler)
    if not prefilled and end != "going on":
        scheduler.check_integrity()
        scheduler.prefilled("guess", 0.0)
    scheduler.complete("guess", 0.0, kept)
    scheduler.check_integrity()
    with pytest.raises(UnknownPlan):
        scheduler.complete("guess", 0.0, kept)
    if end == "gave way":
        assert (scheduler.instances.running, scheduler.instances.idle) == (1, [])
        scheduler.complete("in its way", 0.0, kept=False)
    assert (scheduler.instances.running, scheduler.instances.idle, scheduler.tree.grants.open) == (0, ["one"], {})
    found = [step.source for step in scheduler.admit(ask("again", "ab"), 0.0).documents]
    assert found == [Tier.GPU if kept or prefilled or end != "going on" else None] * 2


def test_the_end_of_a_speculation_is_nobodys_turn_who_waits_for_more(scheduler):
    run(scheduler, ask("long", "ab"))
    guess(scheduler, ask("guess", "c"))
    wait(scheduler, ask("waits", "xy"))
    assert scheduler.complete("guess", 0.0, kept=True) == []
    assert [grant.query_id for grant in scheduler.prefilled("long", 0.0)] == ["waits"]


def test_an_instance_is_not_idle_while_it_speculates(build):
    scheduler = build("one", "two")
    guess(scheduler, ask("guess"))
    assert scheduler.instances.idle == ["two"]


def test_what_an_instance_works_on_is_not_less_than_nothing_however_speculations_end(build):
    # Whoever comes next is routed by it.
    scheduler = build("one", "two", step=None)
    guess(scheduler, ask("on one", "abc"), ask("on two", "xyz"))
    run(scheduler, ask("request", question=1))
    scheduler.complete("request", 0.0, kept=True)
    run(scheduler, ask("request", question=1))
    for query_id in ("on one", "on two"):
        scheduler.complete(query_id, 0.0, kept=False)
    assert min(state.backlog_s for state in scheduler.instances.states.values()) >= 0


def test_a_lost_instance_takes_its_speculations_with_it(build):
    scheduler = build("one", "two", max_running=2)
    requests = [ask(name, question=9) for name in ("confirmed", "guess", "on two")]
    guess(scheduler, *requests[:2])
    scheduler.speculative.confirm("confirmed")
    guess(scheduler, requests[2])
    assert scheduler.tree.grants.open["on two"].instance == "two"
    assert scheduler.lifecycle.remove("one") == requests[:2]
    assert scheduler.instances.running == 0
    assert going_on(scheduler) == ["on two"]
    for query_id in ("confirmed", "guess"):
        with pytest.raises(UnknownPlan):
            scheduler.complete(query_id, 0.0, kept=True)
    scheduler.lifecycle.add("one")
    assert scheduler.instances.idle == ["one"]


# Anything in any order

PATHS = ["", "a", "ab", "abc", "ba", "c", "d"]
LENGTHS = {"a": 1, "b": 2, "c": 3, "d": 5}


class SpeculatingMachine(RuleBasedStateMachine):
    """Requests and speculations in any order, over tiers too small for everything.

    The model knows who runs, who waits, which speculations go on, the latest last, and which are given up.
    """

    @initialize(
        policy=st.sampled_from(policy_names()),
        gpu=st.integers(0, 16),
        max_running=st.integers(1, 4),
        max_queued=st.integers(0, 4),
        instances=st.sampled_from([["one"], ["one", "two"]]),
        step=st.sampled_from([None, StepBudget(6, 4), StepBudget(4, 4), StepBudget(9, 3)]),
    )
    def build(self, policy, gpu, max_running, max_queued, instances, step):
        lookahead = Lookahead()
        self.tree = KnowledgeTree(
            create_policy(policy, lookahead), Capacities(gpu, 10), instances, lambda cached, new: 0.01 + new
        )
        self.scheduler = Scheduler(self.tree, lookahead, max_running, max_queued, 2, step)
        self.max_running, self.step = max_running, step
        self.requests: dict[str, Grant] = {}
        self.waiting: set[str] = set()
        self.guesses: dict[str, Grant] = {}
        self.given_up: dict[str, Grant] = {}
        # What goes on ahead of turns, by the plan; the request that it is for.
        self.prepared: dict[str, str] = {}
        self.prefilling: set[str] = set()
        self.retired: set[str] = set()
        self.queries = 0

    def request(self, path, question):
        self.queries += 1
        documents = tuple(PathDocument(content, LENGTHS[content]) for content in path)
        return Request(str(self.queries), "tenant", documents, question)

    @rule(path=st.sampled_from(PATHS), question=st.integers(0, 3))
    def admit(self, path, question):
        request = self.request(path, question)
        try:
            grant = self.scheduler.admit(request, 0.0)
        except Overloaded:
            assert self.scheduler.instances.queued or self.requests or not self.open, (
                "refused beside speculations alone"
            )
        else:
            assert grant is None or grant.instance not in self.retired
            self.waiting.add(request.query_id)
            self.turns_of([grant] if grant is not None else [])

    @rule(path=st.sampled_from(PATHS), question=st.integers(0, 3))
    def speculate(self, path, question):
        request = self.request(path, question)
        room = self.scheduler.speculative.has_room()
        queues = {name for name, state in self.scheduler.instances.states.items() if state.queue}
        grant = self.scheduler.speculative.admit(request, 0.0)
        if grant is None:
            assert not self.scheduler.speculative.runs(request.query_id)
            assert room is False or self.step is not None
        else:
            assert room
            assert grant.instance not in queues, "a speculation started beside a request that waits"
            assert grant.instance not in self.retired
            assert grant.ends == []
            self.guesses[request.query_id] = grant
            self.prefilling.add(request.query_id)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def prepare(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queries += 1
        plan_id = str(self.queries)
        may = self.scheduler.speculative.may_prefetch(query_id)
        grant = self.scheduler.speculative.prefetch(query_id, plan_id, 0.0)
        if grant is None:
            assert plan_id not in self.tree.grants.open
            return
        assert may
        assert grant.instance not in self.retired
        assert any(step.source is not Tier.GPU and step.kept is not None for step in grant.documents)
        self.prepared[plan_id] = query_id
        self.given_up[plan_id] = grant
        self.prefilling.add(plan_id)
        assert not self.scheduler.speculative.may_prefetch(query_id)

    @precondition(lambda self: self.guesses)
    @rule(data=st.data())
    def confirm(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.guesses)))
        self.scheduler.speculative.confirm(query_id)
        self.requests[query_id] = self.guesses.pop(query_id)

    @precondition(lambda self: self.guesses)
    @rule(data=st.data())
    def withdraw(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.guesses)))
        self.scheduler.speculative.withdraw(query_id)
        self.given_up[query_id] = self.guesses.pop(query_id)

    @precondition(lambda self: self.prefilling)
    @rule(data=st.data(), late=st.booleans())
    def prefill(self, data, late):
        query_id = data.draw(st.sampled_from(sorted(self.prefilling)))
        if late:
            self.prepared.pop(query_id, None)
            self.turns_of(self.scheduler.stalled(query_id, 0.0), prefilled=query_id)
        else:
            self.turns_of(self.scheduler.prefilled(query_id, 0.0), prefilled=query_id)

    @precondition(lambda self: self.tree.grants.open)
    @rule(data=st.data(), kept=st.booleans())
    def complete(self, data, kept):
        query_id = data.draw(st.sampled_from(sorted(self.tree.grants.open)))
        self.forget(query_id)
        self.turns_of(self.scheduler.complete(query_id, 0.0, kept))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        query_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(query_id)
        self.turns_of(self.scheduler.complete(query_id, 0.0, kept=False))

    @rule(data=st.data())
    def refuse(self, data):
        no_guess = [*self.requests, *self.waiting, *self.given_up, "unknown"]
        query_id = data.draw(st.sampled_from(sorted(no_guess)))
        for act in (self.scheduler.speculative.confirm, self.scheduler.speculative.withdraw):
            with pytest.raises(UnknownPlan):
                act(query_id)

    @rule(instance=st.sampled_from(["one", "two", "three"]), isolated=st.booleans())
    def add_instance(self, instance, isolated):
        self.come(instance, isolated)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def retire_instance(self, data):
        instance = data.draw(st.sampled_from(self.open))
        self.scheduler.lifecycle.retire(instance)
        self.retired.add(instance)
        self.move_on()

    @rule()
    def forget_ended(self):
        for instance in self.scheduler.lifecycle.ended():
            assert instance in self.retired
            assert self.open, "the last is kept while requests wait there"
            assert self.scheduler.lifecycle.remove(instance) == []
            self.retired.remove(instance)

    def come(self, instance, isolated=False):
        self.scheduler.lifecycle.add(instance, isolated)
        if instance in self.retired:
            self.retired.remove(instance)
            self.turns_of(self.scheduler.lifecycle.reinstate(instance, 0.0))
        self.move_on()

    @property
    def open(self):
        return [instance for instance in self.tree.tiers.gpus if instance not in self.retired]

    def move_on(self):
        """Who waits for retired instances waits for others, in the order in which they came."""
        moved = self.scheduler.lifecycle.take_stranded()
        ids = [request.query_id for request in moved]
        assert set(ids) <= self.waiting
        assert not moved or self.open
        # What was begun for them goes on where they are not any more.
        self.prepared = {plan_id: query_id for plan_id, query_id in self.prepared.items() if query_id not in ids}
        for request in moved:
            try:
                grant = self.scheduler.admit(request, 0.0)
            except Overloaded:
                self.waiting.remove(request.query_id)
            else:
                self.turns_of([grant] if grant is not None else [])

    @precondition(lambda self: len(self.tree.grants.open) > 2)
    @rule(data=st.data())
    def restart_instance(self, data):
        instance = data.draw(st.sampled_from(sorted(self.tree.tiers.gpus)))
        granted = {query_id for query_id, grant in self.tree.grants.open.items() if grant.instance == instance}
        lost = {request.query_id for request in self.scheduler.lifecycle.remove(instance)}
        assert granted <= lost <= granted | self.waiting
        for query_id in lost:
            self.forget(query_id)
        self.scheduler.lifecycle.add(instance)
        self.retired.discard(instance)
        self.move_on()

    def forget(self, query_id):
        for known in (self.requests, self.guesses, self.given_up):
            known.pop(query_id, None)
        self.waiting.discard(query_id)
        self.prefilling.discard(query_id)
        self.prepared.pop(query_id, None)

    def turns_of(self, grants, prefilled=None):
        if prefilled is not None:
            self.prefilling.remove(prefilled)
        for grant in grants:
            assert grant.instance not in self.retired
            self.waiting.remove(grant.query_id)
            self.requests[grant.query_id] = grant
            self.prefilling.add(grant.query_id)
            here = [query_id for query_id, guess in self.guesses.items() if guess.instance == grant.instance]
            assert grant.query_id not in self.prepared.values(), "what was begun for a request goes on beside it"
            prepared = [plan_id for plan_id in grant.ends if self.prepared.pop(plan_id, None) is not None]
            ends = [query_id for query_id in grant.ends if query_id not in prepared]
            # Those that take nothing of the step may be passed over.
            assert ends == [query_id for query_id in reversed(here) if query_id in ends]
            for query_id in ends:
                self.given_up[query_id] = self.guesses.pop(query_id)

    @invariant()
    def holds_together(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        check_integrity(self.tree)
        assert self.tree.tiers.retired == self.retired
        assert self.scheduler.instances.running == len(self.requests)
        assert self.scheduler.instances.queued == len(self.waiting)
        assert set(going_on(self.scheduler)) == set(self.guesses)
        assert set(self.tree.grants.open) == {*self.requests, *self.guesses, *self.given_up}
        for instance in self.tree.tiers.gpus:
            guesses = [query_id for query_id, grant in self.guesses.items() if grant.instance == instance]
            running = [query_id for query_id, grant in self.requests.items() if grant.instance == instance]
            assert len(running) + len(guesses) <= self.max_running
            if self.step is not None:
                works = self.scheduler.book.requests
                taken = [works[query_id].step_share for query_id in (*running, *guesses)]
                assert sum(taken) <= self.step.tokens or sum(share > 0 for share in taken) == 1

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        self.come("last")
        while self.tree.grants.open:
            query_id = next(iter(self.tree.grants.open))
            self.forget(query_id)
            self.turns_of(self.scheduler.complete(query_id, 0.0, kept=True))
        assert not self.waiting
        self.holds_together()
        for instance in self.scheduler.lifecycle.ended():
            self.scheduler.lifecycle.remove(instance)
        assert sorted(self.scheduler.instances.idle) == sorted(self.tree.tiers.gpus)
        assert not any(node.locks for node in self.tree.registry.nodes.values())
        assert not any(state.backlog_s for state in self.scheduler.instances.states.values())


TestSpeculating = SpeculatingMachine.TestCase
TestSpeculating.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "submit", "speculate", "speculate", "prefilled", "complete", "withdraw"]),
            st.integers(0, 9),
            st.integers(1, 5),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([None, StepBudget(6, 4), StepBudget(9, 3)]),
)
def test_requests_start_when_they_would_if_nobody_speculated(events, max_running, max_queued, step):
    """Where nothing is cached, and nothing else than room could make a difference."""
    with_, without = (
        build_scheduler(gpu=0, max_running=max_running, max_queued=max_queued, step=step) for _ in range(2)
    )
    started: list[str] = []
    guesses: list[str] = []

    def both(act):
        results = []
        for scheduler in (with_, without):
            try:
                results.append(act(scheduler))
            except Overloaded:
                results.append("refused")
        assert results[0] == results[1]
        return results[0]

    def end(scheduler, query_id):
        return [grant.query_id for grant in scheduler.complete(query_id, 0.0, kept=True)]

    for number, (event, which, tokens) in enumerate(events):
        if event == "submit":
            request = ask(f"request {number}", question=tokens)
            if both(lambda scheduler, request=request: scheduler.admit(request, 0.0) is not None) is True:
                started.append(request.query_id)
        elif event == "speculate":
            if with_.speculative.admit(ask(f"guess {number}", question=tokens), 0.0) is not None:
                guesses.append(f"guess {number}")
        elif event == "prefilled" and started:
            query_id = started[which % len(started)]
            turns = both(lambda scheduler, query_id=query_id: [g.query_id for g in scheduler.prefilled(query_id, 0.0)])
            started += turns
        elif event == "complete" and started:
            query_id = started.pop(which % len(started))
            started += both(lambda scheduler, query_id=query_id: end(scheduler, query_id))
        elif event == "withdraw" and guesses:
            assert end(with_, guesses.pop(which % len(guesses))) == []
        with_.check_integrity()
