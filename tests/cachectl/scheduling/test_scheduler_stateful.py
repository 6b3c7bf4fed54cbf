"""The scheduler under random use: its bounds and the tree's locks hold after each step."""

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from histories import indices, pick
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy, policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.errors import InvalidRequest, Overloaded, Unavailable, UnknownPlan
from protocol.generation import StepBudget
from protocol.tiers import Tier

# Few prefixes, so that requests share them. "s" is a system prompt.
PATHS = ["", "a", "ab", "abc", "abd", "ba", "c", "s", "sa", "sab", "sb", "sbd"]


LENGTHS = {"s": 2, "a": 1, "b": 2, "c": 3, "d": 5}


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests, completions and instance changes on small tiers.

    The model knows the running requests, the waiting ones in order of arrival, and how often each was overtaken.
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
            KvStorage(Capacities(gpu, host, 10)),
            instances,
            TreeCosts(lambda cached, new: 0.01 + new * (1 + cached / 10)),
        )
        self.scheduler = Scheduler(self.tree, self.lookahead, max_running, max_queued, window, step)
        self.step = step
        self.max_running, self.max_queued, self.window = max_running, max_queued, window
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Grant] = {}
        self.waiting: dict[str, int] = {}
        self.returned: list[Request] = []
        self.deliveries: list[MoveBatch] = []
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
            self.submit(Request(str(self.queries), namespace, documents, question, int(path[:1] == "s")))
            self.holds_together()

    @precondition(lambda self: self.returned)
    @rule()
    def submit_again(self):
        self.submit(self.returned.pop())

    @precondition(lambda self: self.running)
    @rule(which=indices, lost=indices)
    def prefill(self, which, lost):
        query_id = pick(sorted(self.running), which)
        self.start(self.scheduler.prefilled(query_id, self.now, self.some_lost(query_id, lost)))

    @precondition(lambda self: self.running)
    @rule(which=indices)
    def stall(self, which):
        self.start(self.scheduler.stalled(pick(sorted(self.running), which), self.now))

    @precondition(lambda self: self.running)
    @rule(
        which=indices,
        lost=indices,
        kept=st.sampled_from([True, True, True, False]),
        unwritten=st.sampled_from([None, ()]),
    )
    def complete(self, which, lost, kept, unwritten):
        query_id = pick(sorted(self.running), which)
        copies = self.some_lost(query_id, lost)
        del self.running[query_id]
        self.start(self.scheduler.complete(query_id, self.now, kept, copies, unwritten))

    @precondition(lambda self: self.tree.tiers.gpus)
    @rule(which=indices)
    def deliver(self, which):
        instance = pick(sorted(self.tree.tiers.gpus), which)
        self.deliveries.append(self.scheduler.deliver(instance))

    @precondition(lambda self: self.deliveries)
    @rule(which=indices)
    def answer(self, which):
        self.scheduler.delivered(self.deliveries.pop(which % len(self.deliveries)), ())

    @precondition(lambda self: self.waiting)
    @rule(which=indices)
    def withdraw(self, which):
        query_id = pick(sorted(self.waiting), which)
        del self.waiting[query_id]
        granted = self.scheduler.complete(query_id, self.now, kept=False)
        assert self.step or not granted
        self.start(granted)

    @rule(content=st.sampled_from("sabcd"))
    def delete(self, content):
        self.tree.delete(content)

    @rule(which=indices)
    def refuse(self, which):
        known = [*self.running, *self.waiting]
        with pytest.raises(UnknownPlan):
            self.scheduler.complete(str(self.queries + 1), self.now, kept=True)
        if known:
            with pytest.raises(InvalidRequest):
                self.scheduler.admit(self.requests[pick(sorted(known), which)], self.now)

    @rule(instance=st.sampled_from(["one", "two", "three"]))
    def gain_instance(self, instance):
        self.scheduler.instances.add(instance)

    @precondition(lambda self: len(self.waiting) > 3 or not self.running)
    @precondition(lambda self: self.tree.tiers.gpus)
    @rule(which=indices)
    def lose_instance(self, which):
        instance = pick(sorted(self.tree.tiers.gpus), which)
        ran = [query_id for query_id, grant in self.running.items() if grant.instance == instance]
        lost = self.scheduler.instances.remove(instance)
        assert {request.query_id for request in lost} >= set(ran)
        for request in lost:
            assert request == self.requests[request.query_id]
            if self.running.pop(request.query_id, None) is None:
                del self.waiting[request.query_id]
        self.returned += lost

    def submit(self, request):
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
                self.start([grant])

    def granted(self, grant):
        request = self.requests[grant.query_id]
        assert [step.tokens for step in grant.documents] == [document.tokens for document in request.documents]
        assert [bytes.fromhex(step.key) for step in grant.documents] == path_keys(
            request.namespace, [document.content for document in request.documents]
        )
        self.running[grant.query_id] = grant

    def start(self, grants):
        for grant in grants:
            arrived = list(self.waiting).index(grant.query_id)
            for older in list(self.waiting)[:arrived]:
                if self.instance_of(older) == grant.instance:
                    self.waiting[older] += 1
            assert self.waiting.pop(grant.query_id) <= self.window
            self.granted(grant)

    def instance_of(self, query_id):
        return self.scheduler.book.requests[query_id].instance

    def some_lost(self, query_id, lost):
        """One lost copy for every fifth value of ``lost``."""
        steps = [step for step in self.running[query_id].documents if step.source or step.kept]
        index, rest = divmod(lost, 5)
        if not steps or rest:
            return []
        step = pick(steps, index // 2)
        return [(bytes.fromhex(step.key), Tier.HOST if index % 2 else step.source or step.kept)]

    @invariant()
    def holds_together(self):
        if not hasattr(self, "scheduler"):
            return
        check_integrity(self.scheduler)
        check_integrity(self.tree)
        assert self.scheduler.instances.running == len(self.running)
        assert self.scheduler.instances.queued == len(self.waiting) == len(self.lookahead)
        assert all(overtaken <= self.window for overtaken in self.waiting.values())
        assert self.scheduler.instances.largest_overtake <= self.window
        for query_id in self.waiting:
            queue = self.scheduler.instances.states[self.instance_of(query_id)].queue
            told = -queue._entry(query_id)[0]
            assert told >= self.scheduler.book.work(query_id).priority, "the queue missed a higher priority"

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        while self.running:
            query_id = next(iter(self.running))
            del self.running[query_id]
            self.start(self.scheduler.complete(query_id, self.now, kept=True))
        assert not self.waiting
        self.holds_together()
        assert self.scheduler.instances.idle == list(self.tree.tiers.gpus)
        assert not self.tree.grants.open
        assert not self.tree.registry.detached
        assert not any(node.locks for node in self.tree.registry.nodes.values())
        assert all(copy.held for node in self.tree.registry.nodes.values() for copy in node.copies)
        assert not any(state.backlog_s or state.prefilling for state in self.scheduler.instances.states.values())


TestScheduler = SchedulerMachine.TestCase


TestScheduler.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
