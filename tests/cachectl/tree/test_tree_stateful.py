"""The knowledge tree under random use: all invariants hold after each step."""

from controller_integrity import check_integrity
from example_counts import examples
from histories import indices, pick
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tree_cases import serving_at, tree_of

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import policy_names
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.grant import Grant
from protocol.errors import PinRefused, UnknownNode
from protocol.kv import HeldNode, Move, Pages
from protocol.tiers import Tier

NAMESPACES = ("tenant-a", "tenant-b")
TOKENS = {"s": 2, "a": 1, "b": 2, "c": 3, "d": 5, "e": 8}
contents = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
namespaces = st.sampled_from(NAMESPACES)


class TreeMachine(RuleBasedStateMachine):
    """Random admissions, completions, losses, deletions, pins, restores and instance changes on small tiers."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Grant] = []
        self.deliveries: list[MoveBatch] = []
        self.pinned: list[tuple[str, list[str]]] = []
        self.queries = 0
        self.now = 0.0
        self.lossy = False

    @initialize(
        policy=st.sampled_from(policy_names()),
        gpu=st.integers(0, 20),
        host=st.integers(0, 30),
        disk=st.integers(0, 30),
        window_s=st.sampled_from([None, 3.0]),
        page=st.sampled_from([1, 1, 4]),
        load_s=st.sampled_from([None, 0.5, 2.0]),
        write_through=st.booleans(),
        disk_name=st.sampled_from(["", "common"]),
    )
    def build(
        self,
        policy: str,
        gpu: int,
        host: int,
        disk: int,
        window_s: float | None,
        page: int,
        load_s: float | None,
        write_through: bool,
        disk_name: str,
    ) -> None:
        self.lookahead = Lookahead()
        self.load_s = load_s
        self.sizes = host, disk, page
        self.disk_name = disk_name
        self.tree = tree_of(
            gpu,
            host * page,
            disk,
            policy=policy,
            lookahead=self.lookahead,
            window_s=window_s,
            load_s=load_s,
            page_tokens=page,
            arena=PageAllocator(host, page) if page > 1 else None,
            write_through=write_through,
            serving=True,
            disk_name=disk_name,
        )

    @rule(namespace=namespaces, path=contents, index=st.integers(0, 1), system=st.booleans(), waits=st.booleans())
    def admit(self, namespace: str, path: list[str], index: int, system: bool, waits: bool) -> None:
        instances = list(self.tree.tiers.gpus)
        path = ["s", *path] if system else path
        keys = path_keys(namespace, path)
        self.queries += 1
        query_id = str(self.queries)
        if waits:
            self.lookahead.enter(query_id, keys)
            self.lookahead.leave(query_id)
        documents = [PathDocument(content, TOKENS[content]) for content in path]
        instance = instances[index % len(instances)]
        self.now += 0.5
        before = [copy.cache.tier for copy in self.tree.lookup.match(namespace, path, instance)]
        grant = self.tree.grants.admit(query_id, namespace, documents, keys, 1, instance, self.now, pinned=int(system))
        loaded = [step.source for step in grant.documents if step.source]
        assert loaded == before[: len(loaded)] if self.load_s else loaded == before
        self.open.append(grant)
        self.check_reach(instance, grant.moves)
        self.check_peers(grant)

    @rule(path=contents, namespace=namespaces)
    def wait_and_give_up(self, path: list[str], namespace: str) -> None:
        keys = path_keys(namespace, path)
        self.lookahead.enter("passing", keys)
        self.tree.reconsider(self.lookahead.leave("passing"))

    @rule(path=contents, namespace=namespaces)
    def wait(self, path: list[str], namespace: str) -> None:
        self.queries += 1
        self.lookahead.enter(f"waiting-{self.queries}", path_keys(namespace, path))

    @precondition(lambda self: self.open)
    @rule(which=indices, kept=st.booleans(), loses=st.booleans(), written=st.sampled_from([None, False, True, True]))
    def complete(self, which: int, kept: bool, loses: bool, written: bool | None) -> None:
        grant = self.open.pop(which % len(self.open))
        if grant.completed:
            return
        steps = [step for step in grant.documents if step.source or step.kept]
        lost = [pick(steps, which)] if steps and loses else []
        unwritten = None if written is None else self.unwritten(grant, written, which)
        self.tree.grants.complete(
            grant, kept, [(bytes.fromhex(step.key), step.source or step.kept) for step in lost], unwritten
        )
        unharmed = not self.lossy and not any(node.detached for node in grant.locked)
        if kept and not lost and unharmed:
            for step in grant.documents:
                if step.kept is not None:
                    assert bytes.fromhex(step.key) in self.tree.registry.nodes

    @rule(content=st.sampled_from("sabcde"), namespace=st.one_of(st.none(), namespaces))
    def delete(self, content: str, namespace: str | None) -> None:
        self.tree.delete(content, namespace)
        for one in (namespace,) if namespace else NAMESPACES:
            assert not self.tree.lookup.match(one, [content], next(iter(self.tree.tiers.gpus)))

    @rule()
    def clear(self) -> None:
        self.tree.clear()
        assert not self.tree.registry.nodes

    @rule(namespace=namespaces, path=contents)
    def pin(self, namespace: str, path: list[str]) -> None:
        try:
            self.tree.pin(namespace, path)
        except (UnknownNode, PinRefused):
            return
        self.pinned.append((namespace, path))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        namespace, path = self.pinned.pop()
        try:
            self.tree.unpin(namespace, path)
        except UnknownNode:
            return

    @rule(
        namespace=namespaces,
        path=contents,
        tier=st.sampled_from(Tier),
        index=st.integers(0, 1),
        first=st.integers(0, 9),
        stamp=st.integers(1, 99),
    )
    def restore(self, namespace: str, path: list[str], tier: Tier, index: int, first: int, stamp: int) -> None:
        instances = list(self.tree.tiers.gpus)
        cache = self.tree.tiers.cache(tier, instances[index % len(instances)])
        for depth in range(1, len(path) + 1):
            pages = Pages((first, first + 1), stamp) if tier is Tier.HOST else None
            held = HeldNode(namespace, tuple(path[:depth]), TOKENS[path[depth - 1]], pages)
            if not self.tree.insert(held, cache):
                self.tree.refuse(held, cache)

    @rule(namespace=namespaces, path=contents, tier=st.sampled_from(Tier), index=st.integers(0, 1))
    def lose(self, namespace: str, path: list[str], tier: Tier, index: int) -> None:
        instances = list(self.tree.tiers.gpus)
        self.tree.grants.lose(instances[index % len(instances)], [(path_keys(namespace, path)[-1], tier)])
        self.lossy = True

    @precondition(lambda self: self.open)
    @rule(which=indices)
    def prefill(self, which: int) -> None:
        grant = pick(self.open, which)
        if not grant.completed:
            self.tree.grants.prefilled(grant)

    @rule(index=st.integers(0, 1))
    def deliver(self, index: int) -> None:
        instances = list(self.tree.tiers.gpus)
        instance = instances[index % len(instances)]
        batch = MoveBatch(instance)
        self.tree.tiers.take_moves(batch)
        self.tree.tiers.under_way.begin(batch)
        self.check_reach(instance, batch.moves)
        self.deliveries.append(batch)

    @precondition(lambda self: self.deliveries)
    @rule(which=indices, answered=st.booleans(), written=st.booleans())
    def answer(self, which: int, answered: bool, written: bool) -> None:
        batch = self.deliveries.pop(which % len(self.deliveries))
        if answered:
            self.tree.tiers.confirm(batch, self.unwritten(batch, written, which), self.tree.grants.tick)
        else:
            self.tree.tiers.under_way.give_back(batch, self.tree.grants.tick + 0.5)

    def unwritten(self, batch: MoveBatch, written: bool, which: int) -> list[tuple[bytes, Tier]]:
        """Nothing if all is ``written``; else one of the copies that a batch makes."""
        if written or not batch.writes:
            return []
        self.lossy = True
        copy = pick(batch.writes, which)
        return [(copy.node.key, copy.cache.tier)]

    @rule(content=st.sampled_from("abc"), blocked=st.booleans())
    def block(self, content: str, blocked: bool) -> None:
        if blocked:
            self.tree.registry.block(content, None)
        elif self.tree.registry._blocks(content, ""):
            self.tree.registry.unblock(content, None)

    @precondition(lambda self: len(self.tree.tiers.gpus) > 1)
    @rule(which=indices)
    def lose_instance(self, which: int) -> None:
        self.tree.remove_instance(pick(sorted(self.tree.tiers.gpus), which))

    @rule(instance=st.sampled_from(["two", "three"]), location=st.sampled_from(["", "elsewhere"]))
    def gain_instance(self, instance: str, location: str) -> None:
        host, disk, page = self.sizes
        arena = PageAllocator(host, page) if page > 1 else None
        self.tree.tiers.add_location(location, host * page, disk, arena, self.disk_name)
        self.tree.tiers.add_instance(instance, location, serving_at(instance))

    @rule(index=st.integers(0, 1), location=st.sampled_from(["", "elsewhere", "common"]), opens=st.booleans())
    def close_link(self, index: int, location: str, opens: bool) -> None:
        instances = list(self.tree.tiers.gpus)
        links, instance = self.tree.tiers.links, instances[index % len(instances)]
        if opens:
            links.half_open(instance, location)
        else:
            links.close(instance, location, next(iter(links.addresses(location)), ""))

    @rule(
        namespace=namespaces,
        path=contents,
        tier=st.sampled_from([Tier.HOST, Tier.DISK]),
        place=st.sampled_from(["elsewhere", "common"]),
    )
    def lose_at_a_peer(self, namespace: str, path: list[str], tier: Tier, place: str) -> None:
        self.tree.grants.lose_at(place, [(path_keys(namespace, path)[-1], tier)])
        self.lossy = True

    @rule()
    def persist(self) -> None:
        self.tree.persist()

    @precondition(lambda self: self.deserted())
    @rule()
    def lose_location(self) -> None:
        location = self.deserted()[0]
        self.tree.remove_location(location)
        assert all(move.location != location for move in self.tree.tiers.pending_moves)
        self.lossy = True

    def check_reach(self, instance: str, moves: list[Move]) -> None:
        """Assert that an instance's moves concern tiers that it reaches."""
        assert all(move.instance in (None, instance) for move in moves)
        assert all(move.location in self.tree.tiers.location_of(instance).places for move in moves)

    def check_peers(self, grant: Grant) -> None:
        """Assert that what a plan reads at peers is there, and confirmed, at a location that serves the instance."""
        gpu = self.tree.tiers.gpu(grant.instance)
        for step in grant.documents:
            if step.peer is not None:
                assert step.source is None
                assert self.tree.tiers.links.serves(step.peer.location, grant.instance)
                cache = self.tree.tiers.shared_cache(step.peer.tier, step.peer.location)
                copy = self.tree.registry.nodes[bytes.fromhex(step.key)].copy_in(cache)
                assert not gpu.reaches(cache)
                assert copy.confirmed
                assert copy.pages == step.peer.pages

    def deserted(self) -> list[str]:
        tiers = self.tree.tiers
        return [location for location in tiers.locations if not tiers.instances_at(location)]

    @invariant()
    def holds_together(self) -> None:
        if hasattr(self, "tree"):
            check_integrity(self.tree)

    def teardown(self) -> None:
        if hasattr(self, "tree"):
            for grant in self.open:
                if not grant.completed:
                    self.tree.grants.complete(grant, kept=True)
            check_integrity(self.tree)
            assert not any(node.locks for node in self.tree.registry.nodes.values())
            assert not self.tree.registry.detached


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
