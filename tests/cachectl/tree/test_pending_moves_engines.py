"""Random plans, delays, failures and losses: the engines' tiers hold what the tree counts, and plans find it there."""

from controller_integrity import check_integrity
from engine_models import DISK, GPU, HOST, EngineModel, ModelledTiers
from example_counts import examples
from histories import pick
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import TENANT, begin, key, paged_tree_of, tokens_of

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import Copy
from cachectl.policies import policy_names
from cachectl.runtime.messages import lost_copies
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import KvNode

PAGE = 2
ROUNDS = 6


class EngineTraffic:
    """A tree and its engines. Moves take their time; plans run or fail, deliveries are answered or not.

    A plan is granted, received by its engine, started and finished. With ``in_order``, an instance receives its plans
    and deliveries in the order of the tree's decisions.
    """

    def __init__(self, tree: KnowledgeTree, in_order: bool, instances: int) -> None:
        self.tree = tree
        self.in_order = in_order
        self.instances = instances
        self.tiers = ModelledTiers()
        self.engines = {name: EngineModel(self.tiers) for name in ("one", "two")}
        self.paths: dict[str, str] = {}
        self.granted: list[Grant] = []
        self.received: list[Grant] = []
        self.running: list[Grant] = []
        self.deliveries: dict[str, MoveBatch] = {}
        self.sent = 0
        # The instance that is lost and has not come again.
        self.away = ""
        # Files that a fault deleted.
        self.vanished: set[str] = set()

    # Plans

    def admit(self, path: str, first: bool) -> None:
        instance = self.instance(first)
        grant = begin(self.tree, path, instance)
        self.paths[grant.query_id] = path
        self.granted.append(grant)
        for step in grant.documents:
            if step.source in (HOST, DISK):
                node = self.tree.registry.find(bytes.fromhex(step.key))
                writer = node.copy_in(self.tree.tiers.cache(step.source, instance)).writer
                assert writer in (None, instance), "a plan names a copy that another instance has not confirmed"
                there = self.tiers.read(step.source, step.key, step.pages) is not None
                assert there or writer == instance or step.key in self.vanished, "a plan names a missing copy"

    def serve(self, path: str, first: bool) -> None:
        """Run a plan to its end at once, unless others come first."""
        if not self.granted and not self.received:
            self.admit(path, first)
            self.receive(0)
            self.start(0, True)
            self.engines[self.instance(first)].work_all()
            self.finish(-1, True)

    def receive(self, which: int) -> None:
        """Let an engine begin the moves of a plan."""
        if self.granted:
            grant = pick(self.granted, which)
            if self.in_order:
                grant = next(other for other in self.granted if other.instance == grant.instance)
            self.granted.remove(grant)
            self.engines[grant.instance].receive(grant.query_id, grant.moves)
            self.received.append(grant)

    def start(self, which: int, told: bool) -> None:
        """Let a plan have its first token. The controller may not be ``told``."""
        if self.received:
            grant = self.received.pop(which % len(self.received))
            engine, held = self.engines[grant.instance], dict(self.engines[grant.instance].gpu)
            engine.prefill(grant.query_id, tuple(grant.documents), self.nodes(grant))
            if told:
                self.tree.grants.prefilled(grant, lost_copies(engine.take_lost()))
                self.running.append(grant)
            else:
                engine.gpu = held
                self.tree.grants.complete(grant, kept=False)

    def finish(self, which: int, completed: bool) -> None:
        if self.running:
            grant = self.running.pop(which % len(self.running))
            unwritten = self.engines[grant.instance].unwritten(grant.query_id) if completed else None
            self.tree.grants.complete(grant, completed, (), None if unwritten is None else lost_copies(unwritten))

    def fail(self, which: int, received: bool) -> None:
        """End a plan before its first token."""
        plans = self.received if received else self.granted
        if plans:
            self.tree.grants.complete(plans.pop(which % len(plans)), kept=False)

    def nodes(self, grant: Grant) -> list[KvNode]:
        path, nodes = self.paths[grant.query_id], []
        for depth, node_key in enumerate(path_keys(TENANT, path), start=1):
            prefix = sum(map(tokens_of, path[: depth - 1]))
            nodes.append(KvNode(node_key.hex(), TENANT, tuple(path[:depth]), prefix, tokens_of(path[depth - 1])))
        return nodes

    # Moves

    def work(self, first: bool, moves: int) -> None:
        for _ in range(moves):
            self.engines[self.instance(first)].work()

    def deliver(self, first: bool) -> None:
        """Deliver pending moves outside of plans."""
        instance = self.instance(first)
        if self.in_order and any(grant.instance == instance for grant in self.granted):
            return
        batch = MoveBatch(instance)
        self.tree.tiers.take_moves(batch)
        self.tree.tiers.under_way.begin(batch)
        self.sent += 1
        self.deliveries[f"delivery {self.sent}"] = batch
        self.engines[instance].receive(f"delivery {self.sent}", batch.moves)

    def answer(self, which: int, arrives: bool) -> None:
        """End a delivery: with its answer, once there is one, or without."""
        if not self.deliveries:
            return
        name = pick(list(self.deliveries), which)
        batch = self.deliveries[name]
        unwritten = self.engines[batch.instance].unwritten(name)
        if not arrives:
            self.tree.tiers.under_way.give_back(batch, self.tree.grants.tick + 0.5)
        elif unwritten is not None:
            self.tree.tiers.confirm(batch, lost_copies(unwritten), self.tree.grants.tick)
        else:
            return
        del self.deliveries[name]

    # Incidents

    def release(self, content: str, first: bool) -> None:
        """An engine is short of blocks and releases an unused copy."""
        instance = self.instance(first)
        node = self.tree.registry.nodes.get(key(content))
        if node is not None and not node.locks and content and not node.below.get(self.tree.tiers.gpu(instance)):
            self.engines[instance].gpu.pop(node.key.hex(), None)
            self.tree.grants.lose(instance, [(node.key, GPU)])

    def lose(self, first: bool) -> None:
        """Kill an instance, unless it is the last one. What it has not carried out by now never happens."""
        instance = self.instance(first)
        if self.instances > 1 and self.away:
            return
        self.tree.remove_instance(instance)
        self.engines[instance].kill()
        self.away = instance
        self.granted = [grant for grant in self.granted if not grant.completed]
        self.received = [grant for grant in self.received if not grant.completed]
        self.running = [grant for grant in self.running if not grant.completed]
        for name in [name for name, batch in self.deliveries.items() if batch.instance == instance]:
            self.tree.tiers.under_way.give_back(self.deliveries.pop(name), self.tree.grants.tick + 0.5)
        if self.instances == 1:
            self.come()

    def come(self) -> None:
        """Start the lost instance again."""
        if self.away:
            self.tree.tiers.add_instance(self.away)
            self.away = ""

    def vanish(self, which: int) -> None:
        """Delete a file behind the tree's back."""
        if self.tiers.disk:
            self.vanished.add(pick(sorted(self.tiers.disk), which))
            del self.tiers.disk[pick(sorted(self.tiers.disk), which)]

    def delete(self, content: str) -> None:
        self.tree.delete(content)

    def persist(self) -> None:
        self.tree.persist()

    # The end

    def end(self) -> None:
        """Let everything run to its end."""
        while self.granted:
            self.receive(0)
        while self.received:
            self.start(0, told=True)
        for engine in self.engines.values():
            engine.work_all()
        while self.running:
            self.finish(0, completed=True)
        for _ in range(ROUNDS):
            for first in (True, False):
                self.deliver(first)
                self.engines[self.instance(first)].work_all()
            while self.deliveries:
                self.answer(0, arrives=True)
        check_integrity(self.tree)
        assert not self.tree.tiers.pending_moves
        assert not list(self.tree.tiers.under_way)
        assert not self.tree.registry.detached

    def counted(self, cache: TierCache) -> dict[str, Copy]:
        """The confirmed copies in a cache; there are no others."""
        nodes = self.tree.registry.nodes.values()
        copies = {node.key.hex(): node.copy_in(cache) for node in nodes if node.copy_in(cache)}
        assert all(copy.confirmed for copy in copies.values())
        return copies

    def check_shared_tiers(self) -> None:
        """Assert that each file has an owner in the tree, and that each copy in the tree is there."""
        counted = self.counted(self.tree.tiers.locations[""].disk).keys()
        assert self.tiers.files() <= counted, "a file has no owner"
        assert counted - self.tiers.files() <= self.vanished, "the tree counts a file that is not there"
        for node, copy in self.counted(self.tree.tiers.locations[""].host).items():
            assert self.tiers.read(HOST, node, copy.pages) is not None, "the tree counts pages that hold something else"

    def instance(self, first: bool) -> str:
        if self.instances == 1 or self.away == "two":
            return "one"
        return "one" if first and self.away != "one" else "two"


PATHS = ["a", "a", "b", "b", "c", "D", "ab", "ba", "abc"]
CALM = (
    [("serve", path, first) for path in PATHS for first in (True, False)] * 3
    + [("admit", path, first) for path in PATHS for first in (True, False)] * 3
    + [("receive", which) for which in range(3)] * 14
    + [("start", which, True) for which in range(3)] * 14
    + [("work", first, moves) for first in (True, False) for moves in (1, 1, 2, 4)] * 4
    + [("finish", which, True) for which in range(3)] * 14
    + [("deliver", first) for first in (True, False)] * 8
    + [("answer", which, True) for which in range(2)] * 10
    + [("delete", content) for content in "ab"]
    + [("persist",)] * 2
)
"""Events without failures, weighted by how often they occur. Each is drawn at once: that is fast."""
FAILURES = (
    [("start", which, False) for which in range(3)] * 2
    + [("finish", which, False) for which in range(3)] * 4
    + [("fail", which, received) for which in range(2) for received in (True, False)] * 2
    + [("answer", which, False) for which in range(2)] * 4
    + [("release", content, first) for content in "ab" for first in (True, False)]
    + [("lose", first) for first in (True, False)] * 3
    + [("come",)] * 4
    + [("vanish", which) for which in range(2)] * 2
)
SIZES = ((0, 1, 1, 1, 2), (0, 0, 1, 2), (1, 1, 2, 3))
"""Pages of the GPU, of host memory and of the disk: so few that most plans evict something."""


def histories(failures: bool) -> st.SearchStrategy:
    # Without a minimum, Hypothesis makes mostly short lists.
    return st.lists(st.sampled_from(CALM + FAILURES if failures else CALM), min_size=40, max_size=90)


def tiers_after(policy, sizes, kind, history, instances=2, in_order=True) -> EngineTraffic:
    write_through, load_s, page = kind
    tree = paged_tree_of(*sizes, policy=policy, write_through=write_through, load_s=load_s, page=page)
    traffic = EngineTraffic(tree, in_order, instances)
    for name, *arguments in history:
        getattr(traffic, name)(*arguments)
        check_integrity(traffic.tree)
    traffic.end()
    return traffic


sizes = st.tuples(*map(st.sampled_from, SIZES))


kinds = st.tuples(st.booleans(), st.sampled_from([0.0, 0.7, 2.0]), st.sampled_from([1, PAGE]))


@given(st.sampled_from(policy_names()), sizes, kinds, histories(failures=False))
@settings(max_examples=examples(200), deadline=None)
def test_tiers_match_the_tree_in_the_end(policy, sizes, kind, history):
    traffic = tiers_after(policy, sizes, kind, history, instances=1)
    tiers = traffic.tree.tiers
    traffic.check_shared_tiers()
    assert traffic.engines["one"].gpu.keys() == traffic.counted(tiers.gpu("one")).keys()
    counted = traffic.counted(tiers.locations[""].host).values()
    assert {(stamp, node.key) for stamp, node in traffic.tiers.pages.values()} == {
        (copy.pages.stamp, copy.node.key.hex()) for copy in counted
    }


@given(st.sampled_from(policy_names()), sizes, kinds, histories(failures=True))
@settings(max_examples=examples(300), deadline=None)
def test_tiers_hold_nothing_unknown_after_failures(policy, sizes, kind, history):
    traffic = tiers_after(policy, sizes, kind, history, instances=1)
    traffic.check_shared_tiers()
    assert traffic.engines["one"].gpu.keys() <= traffic.counted(traffic.tree.tiers.gpu("one")).keys()


@given(st.sampled_from(policy_names()), sizes, kinds, histories(failures=True))
@settings(max_examples=examples(500), deadline=None)
def test_tiers_hold_nothing_unknown_when_instances_interleave(policy, sizes, kind, history):
    traffic = tiers_after(policy, sizes, kind, history)
    traffic.check_shared_tiers()
    for instance, gpu in traffic.tree.tiers.gpus.items():
        assert traffic.engines[instance].gpu.keys() <= traffic.counted(gpu).keys()


@given(st.sampled_from(policy_names()), sizes, kinds, histories(failures=True))
@settings(max_examples=examples(300), deadline=None)
def test_every_file_has_an_owner_even_if_moves_overtake_each_other(policy, sizes, kind, history):
    tiers_after(policy, sizes, kind, history, in_order=False).check_shared_tiers()
