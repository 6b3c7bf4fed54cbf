"""Speculative slots under random use: requests start as if nothing speculated."""

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from histories import indices, pick
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_cases import (
    ask_without_question,
    build_scheduler,
    speculations,
)

from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.errors import Overloaded, UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier

PATHS = ["", "a", "ab", "abc", "ba", "c", "d"]


LENGTHS = {"a": 1, "b": 2, "c": 3, "d": 5}


class SpeculatingMachine(RuleBasedStateMachine):
    """Random requests, speculations, work of KV generators and instance changes on small tiers.

    The model knows the running and the waiting requests, the running speculations with the newest last, and those that
    were withdrawn or gave way.
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
            create_policy(policy, lookahead),
            KvStorage(Capacities(gpu, 10)),
            instances,
            TreeCosts(lambda cached, new: 0.01 + new),
        )
        self.tree.tiers.add_location("elsewhere", 10, 0)
        self.scheduler = Scheduler(self.tree, lookahead, max_running, max_queued, 2, step)
        self.max_running, self.step = max_running, step
        self.requests: dict[str, Grant] = {}
        self.waiting: set[str] = set()
        self.guesses: dict[str, Grant] = {}
        self.given_up: dict[str, Grant] = {}
        # Prefetches: the waiting request of each plan.
        self.prepared: dict[str, str] = {}
        self.prefilling: set[str] = set()
        self.retired: set[str] = set()
        self.generators: set[str] = set()
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
                "refused although only speculations run"
            )
        else:
            assert grant is None or grant.instance not in self.retired
            self.waiting.add(request.query_id)
            self.start([grant] if grant is not None else [])

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
    @rule(which=indices)
    def prepare(self, which):
        query_id = pick(sorted(self.waiting), which)
        self.queries += 1
        plan_id = str(self.queries)
        may = self.scheduler.speculative.may_prefetch(query_id)
        request = self.scheduler.book.requests[query_id].request._replace(query_id=plan_id)
        grant = self.scheduler.speculative.prefetch(query_id, request, 0.0)
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

    @precondition(lambda self: self.waiting)
    @rule(which=indices)
    def load(self, which):
        query_id = pick(sorted(self.waiting), which)
        documents = self.scheduler.speculative.to_load(query_id)
        if not documents:
            return
        self.queries += 1
        plan_id = str(self.queries)
        asked = self.scheduler.book.requests[query_id].request
        ahead = asked._replace(query_id=plan_id, documents=asked.documents[:documents], question_tokens=0)
        needed = {node.key for node in self.tree.registry.nodes.values() if self.tree.policy.lookahead.needs(node.key)}
        gpu = self.tree.tiers.gpu(self.scheduler.book.requests[query_id].instance)
        before = {node.key for node in self.tree.registry.nodes.values() if node.copy_in(gpu)} & needed
        grant = self.scheduler.speculative.load(query_id, ahead, 0.0)
        after = {node.key for node in self.tree.registry.nodes.values() if node.copy_in(gpu)}
        assert before <= after, "a load has evicted what a waiting request needs"
        if grant is None:
            assert plan_id not in self.tree.grants.open
            return
        assert grant.instance not in self.retired
        assert all(step.source is not None or step.peer is not None for step in grant.documents), "a load computes"
        assert not self.scheduler.book.requests[plan_id].step_share
        self.prepared[plan_id] = query_id
        self.given_up[plan_id] = grant
        self.prefilling.add(plan_id)
        assert not self.scheduler.speculative.to_load(query_id)

    @precondition(lambda self: self.waiting)
    @rule(which=indices)
    def generate(self, which):
        query_id = pick(sorted(self.waiting), which)
        self.queries += 1
        plan_id = str(self.queries)
        may = self.scheduler.speculative.may_generate(query_id)
        waiting = self.scheduler.book.requests[query_id]
        found = self.tree.lookup.loadable("tenant", waiting.request.documents, waiting.instance)
        grant = self.scheduler.speculative.generate(query_id, waiting.request._replace(query_id=plan_id), 0.0)
        if grant is None:
            assert plan_id not in self.tree.grants.open
            return
        assert may
        assert grant.instance in self.generators
        assert len(found) < len(waiting.keys), "a document is generated although all can be loaded"
        self.given_up[plan_id] = grant
        self.prefilling.add(plan_id)
        assert not self.scheduler.speculative.may_generate(query_id)

    @rule(instance=st.sampled_from(["first generator", "second generator"]), leaves=st.booleans())
    def change_generators(self, instance, leaves):
        if instance not in self.generators:
            self.scheduler.instances.add(instance, "elsewhere", kv_generator=True)
            self.generators.add(instance)
        elif leaves:
            self.generators.remove(instance)
            for request in self.scheduler.instances.remove(instance):
                assert self.given_up[request.query_id].instance == instance
                self.forget(request.query_id)

    @precondition(lambda self: self.guesses)
    @rule(which=indices)
    def confirm(self, which):
        query_id = pick(sorted(self.guesses), which)
        self.scheduler.speculative.confirm(query_id)
        self.requests[query_id] = self.guesses.pop(query_id)

    @precondition(lambda self: self.guesses)
    @rule(which=indices)
    def withdraw(self, which):
        query_id = pick(sorted(self.guesses), which)
        self.scheduler.speculative.withdraw(query_id)
        self.given_up[query_id] = self.guesses.pop(query_id)

    @precondition(lambda self: self.prefilling)
    @rule(which=indices, late=st.booleans())
    def prefill(self, which, late):
        query_id = pick(sorted(self.prefilling), which)
        if late:
            self.prepared.pop(query_id, None)
            self.start(self.scheduler.stalled(query_id, 0.0), prefilled=query_id)
        else:
            self.start(self.scheduler.prefilled(query_id, 0.0), prefilled=query_id)

    @precondition(lambda self: self.tree.grants.open)
    @rule(which=indices, kept=st.booleans())
    def complete(self, which, kept):
        query_id = pick(sorted(self.tree.grants.open), which)
        self.forget(query_id)
        self.start(self.scheduler.complete(query_id, 0.0, kept))

    @precondition(lambda self: self.waiting)
    @rule(which=indices)
    def give_up(self, which):
        query_id = pick(sorted(self.waiting), which)
        self.waiting.remove(query_id)
        self.start(self.scheduler.complete(query_id, 0.0, kept=False))

    @rule(which=indices)
    def refuse(self, which):
        no_guess = [*self.requests, *self.waiting, *self.given_up, "unknown"]
        query_id = pick(sorted(no_guess), which)
        for act in (self.scheduler.speculative.confirm, self.scheduler.speculative.withdraw):
            with pytest.raises(UnknownPlan):
                act(query_id)

    @rule(instance=st.sampled_from(["one", "two", "three"]), location=st.sampled_from(["", "elsewhere"]))
    def add_instance(self, instance, location):
        self.take_instance(instance, location)

    @precondition(lambda self: self.open)
    @rule(which=indices)
    def retire_instance(self, which):
        instance = pick(self.open, which)
        self.scheduler.instances.retire(instance)
        self.retired.add(instance)
        self.move_on()

    @rule()
    def forget_ended(self):
        for instance in self.scheduler.instances.ended():
            assert instance in self.retired
            assert self.open, "the last instance ended while requests wait there"
            assert self.scheduler.instances.remove(instance) == []
            self.retired.remove(instance)

    def take_instance(self, instance, location=""):
        self.scheduler.instances.add(instance, location)
        if instance in self.retired:
            self.retired.remove(instance)
            self.scheduler.instances.reinstate(instance)
            self.start(self.scheduler.start_next(instance, 0.0))
        self.move_on()

    @property
    def open(self):
        return [instance for instance in self.tree.tiers.gpus if instance not in self.retired | self.generators]

    def move_on(self):
        """Move requests that wait for retired instances to others, in order of arrival."""
        moved = self.scheduler.instances.take_stranded()
        ids = [request.query_id for request in moved]
        assert set(ids) <= self.waiting
        assert not moved or self.open
        # Their prefetches go on, on instances where they no longer wait.
        self.prepared = {plan_id: query_id for plan_id, query_id in self.prepared.items() if query_id not in ids}
        for request in moved:
            try:
                grant = self.scheduler.admit(request, 0.0)
            except Overloaded:
                self.waiting.remove(request.query_id)
            else:
                self.start([grant] if grant is not None else [])

    @precondition(lambda self: len(self.tree.grants.open) > 2)
    @rule(which=indices)
    def restart_instance(self, which):
        instance = pick(sorted(self.tree.tiers.gpus), which)
        granted = {query_id for query_id, grant in self.tree.grants.open.items() if grant.instance == instance}
        lost = {request.query_id for request in self.scheduler.instances.remove(instance)}
        assert granted <= lost <= granted | self.waiting
        for query_id in lost:
            self.forget(query_id)
        self.scheduler.instances.add(instance, kv_generator=instance in self.generators)
        self.retired.discard(instance)
        self.move_on()

    def forget(self, query_id):
        for known in (self.requests, self.guesses, self.given_up):
            known.pop(query_id, None)
        self.waiting.discard(query_id)
        self.prefilling.discard(query_id)
        self.prepared.pop(query_id, None)

    def start(self, grants, prefilled=None):
        if prefilled is not None:
            self.prefilling.remove(prefilled)
        for grant in grants:
            assert grant.instance not in self.retired
            self.waiting.remove(grant.query_id)
            self.requests[grant.query_id] = grant
            self.prefilling.add(grant.query_id)
            here = [query_id for query_id, guess in self.guesses.items() if guess.instance == grant.instance]
            assert grant.query_id not in self.prepared.values(), "a request runs beside its own prefetch"
            prepared = [plan_id for plan_id in grant.ends if self.prepared.pop(plan_id, None) is not None]
            ends = [query_id for query_id in grant.ends if query_id not in prepared]
            # Speculations without a step share may be passed over.
            assert ends == [query_id for query_id in reversed(here) if query_id in ends]
            for query_id in ends:
                self.given_up[query_id] = self.guesses.pop(query_id)

    @invariant()
    def holds_together(self):
        if not hasattr(self, "scheduler"):
            return
        check_integrity(self.scheduler)
        check_integrity(self.tree)
        assert self.tree.tiers.retired == self.retired
        assert self.scheduler.instances.running == len(self.requests)
        assert self.scheduler.instances.queued == len(self.waiting)
        assert set(speculations(self.scheduler)) == set(self.guesses)
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
        self.take_instance("last")
        while self.tree.grants.open:
            query_id = next(iter(self.tree.grants.open))
            self.forget(query_id)
            self.start(self.scheduler.complete(query_id, 0.0, kept=True))
        assert not self.waiting
        self.holds_together()
        for instance in self.scheduler.instances.ended():
            self.scheduler.instances.remove(instance)
        assert set(self.scheduler.instances.idle) == self.tree.tiers.gpus.keys() - self.generators
        assert not any(node.locks for node in self.tree.registry.nodes.values())
        assert not any(state.backlog_s for state in self.scheduler.instances.states.values())


TestSpeculating = SpeculatingMachine.TestCase


TestSpeculating.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)


@settings(max_examples=examples(300))
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
def test_requests_start_as_if_nothing_speculated(events, max_running, max_queued, step):
    """Nothing is cached, so that only room can make a difference."""
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
            request = ask_without_question(f"request {number}", question=tokens)
            if both(lambda scheduler, request=request: scheduler.admit(request, 0.0) is not None) is True:
                started.append(request.query_id)
        elif event == "speculate":
            if with_.speculative.admit(ask_without_question(f"guess {number}", question=tokens), 0.0) is not None:
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
        check_integrity(with_)
