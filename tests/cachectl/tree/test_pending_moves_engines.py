"""Random plans, failures and losses leave nothing in the engines' tiers that the tree does not know."""

from histories import event
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_cases import DISK, GPU, HOST, begin, key, paged_tree_of

from cachectl.policies import policy_names
from cachectl.tree.grant import Grant
from cachectl.tree.integrity import check_integrity
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import Move, Pages
from protocol.tiers import Tier

PAGE = 2


class Engines:
    """The engines' tiers: keys by GPU and on disk, and the stamp and key of each page of host memory."""

    def __init__(self) -> None:
        self.gpu: dict[str, set[str]] = {"one": set(), "two": set()}
        self.disk: set[str] = set()
        self.pages: dict[int, tuple[int, str]] = {}

    def has(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> bool:
        if tier is HOST:
            assert pages is not None
            return all(self.pages.get(number) == (pages.stamp, node) for number in pages.numbers)
        return node in (self.disk if tier is DISK else self.gpu[instance])

    def write(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> None:
        if tier is not HOST:
            (self.disk if tier is DISK else self.gpu[instance]).add(node)
            return
        assert pages is not None
        if all(self.pages.get(number, (0, ""))[0] <= pages.stamp for number in pages.numbers):
            self.pages.update(dict.fromkeys(pages.numbers, (pages.stamp, node)))

    def free(self, node: str, tier: Tier, instance: str, pages: Pages | None) -> None:
        if tier is not HOST:
            (self.disk if tier is DISK else self.gpu[instance]).discard(node)
        elif self.has(node, HOST, instance, pages):
            for number in pages.numbers:
                del self.pages[number]

    def carry_out(self, instance: str, moves: list[Move]) -> list[tuple[bytes, Tier]]:
        lost = []
        for move in moves:
            if move.target is not None:
                if self.has(move.node, move.source, instance, move.pages):
                    self.write(move.node, move.target, instance, move.pages)
                if not self.has(move.node, move.target, instance, move.pages):
                    lost.append((bytes.fromhex(move.node), move.target))
            if move.evict:
                self.free(move.node, move.source, instance, move.pages)
        return lost

    def prefill(self, grant: Grant) -> list[tuple[bytes, Tier]]:
        """Execute a plan up to its first token; the copies that it found lost."""
        lost = self.carry_out(grant.instance, grant.moves)
        for step in grant.documents:
            node = step.key.hex()
            if step.source is not None and not self.has(node, step.source, grant.instance, step.pages):
                lost.append((step.key, step.source))
            if step.kept is not None and step.kept is not step.source:
                self.write(node, step.kept, grant.instance, step.pages)
        return lost


class EngineTraffic:
    """A tree and its engines. Plans run or fail, moves are delivered or not, and engines lose copies.

    Plans of an instance start in the order of their admission, or never.
    """

    def __init__(self, tree: KnowledgeTree) -> None:
        self.tree = tree
        self.engines = Engines()
        self.granted: list[Grant] = []
        self.running: list[Grant] = []

    def admit(self, path: str, first: bool) -> None:
        self.granted.append(begin(self.tree, path, "one" if first else "two"))

    def start(self, which: int) -> None:
        if self.granted:
            instance = self.granted[which % len(self.granted)].instance
            grant = next(grant for grant in self.granted if grant.instance == instance)
            self.granted.remove(grant)
            self.running.append(grant)
            self.tree.grants.prefilled(grant, self.engines.prefill(grant))

    def finish(self, which: int) -> None:
        if self.running:
            self.tree.grants.complete(self.running.pop(which % len(self.running)), kept=True)

    def abandon(self, which: int) -> None:
        if self.granted:
            self.tree.grants.complete(self.granted.pop(which % len(self.granted)), kept=False)

    def fail(self, which: int) -> None:
        """Fail a plan after its moves and before its first token."""
        if self.granted:
            grant = self.granted.pop(which % len(self.granted))
            if not any(other.instance == grant.instance and other.tick < grant.tick for other in self.granted):
                self.tree.grants.complete(grant, False, self.engines.carry_out(grant.instance, grant.moves))
            else:
                self.tree.grants.complete(grant, kept=False)

    def deliver(self, first: bool, carried_out: bool, answered: bool) -> None:
        """Deliver pending moves. The instance may be away, or its answer may be lost."""
        instance = "one" if first else "two"
        if any(grant.instance == instance for grant in self.granted):
            return
        tick = self.tree.grants.tick + 0.5
        moves = self.tree.tiers.take_moves(instance)
        lost = self.engines.carry_out(instance, moves) if carried_out else []
        if carried_out and answered:
            self.tree.grants.lose(instance, lost)
        else:
            self.tree.tiers.return_moves(moves, instance, tick)

    def release(self, content: str, first: bool) -> None:
        """An engine is short of blocks and releases an unused copy."""
        instance = "one" if first else "two"
        node = self.tree.registry.nodes.get(key(content))
        if node is not None and not node.locks and content and not node.below.get(self.tree.tiers.gpu(instance)):
            self.engines.gpu[instance].discard(node.key.hex())
            self.tree.grants.lose(instance, [(node.key, GPU)])

    def restart(self, first: bool, carried_out: bool) -> None:
        """Restart an engine. It may have carried out the moves of its next plan before."""
        instance = "one" if first else "two"
        granted = [grant for grant in self.granted if grant.instance == instance]
        if granted and carried_out:
            self.engines.carry_out(instance, granted[0].moves)
        self.tree.remove_instance(instance)
        self.tree.add_instance(instance)
        self.engines.gpu[instance].clear()
        self.granted = [grant for grant in self.granted if not grant.completed]
        self.running = [grant for grant in self.running if not grant.completed]

    def delete(self, content: str) -> None:
        self.tree.delete(content)

    def end(self) -> None:
        while self.granted:
            self.start(0)
        while self.running:
            self.finish(0)
        for _ in range(2):
            for instance in ("one", "two"):
                self.deliver(instance == "one", carried_out=True, answered=True)
        check_integrity(self.tree)
        assert not self.tree.tiers.pending_moves
        assert not self.tree.registry.detached

    def believed(self, cache) -> dict[str, Pages | None]:
        nodes = self.tree.registry.nodes.values()
        return {node.key.hex(): node.copies[cache].pages for node in nodes if cache in node.copies}


def histories(first: st.SearchStrategy[bool], failures: bool) -> st.SearchStrategy:
    """Random events. ``first`` chooses the instance. ``failures`` adds failures, losses and restarts."""
    which = st.integers(0, 3)
    content = st.sampled_from("abcD")
    path = st.lists(content, min_size=1, max_size=3).map("".join)
    kinds = [
        *[event("admit", path=path, first=first)] * 4,
        *[event("start", which=which)] * 3,
        *[event("finish", which=which)] * 3,
        event("deliver", first=first, carried_out=st.just(True), answered=st.just(True)),
        event("delete", content=content),
    ]
    if failures:
        kinds += [
            event("abandon", which=which),
            event("fail", which=which),
            event("deliver", first=first, carried_out=st.booleans(), answered=st.booleans()),
            event("release", content=content, first=first),
            event("restart", first=first, carried_out=st.booleans()),
        ]
    # Several lists, because a single list is mostly a short one.
    part = st.lists(st.sampled_from(kinds).flatmap(lambda kind: kind), max_size=12)
    return st.tuples(*[part] * 4).map(lambda parts: [event for part in parts for event in part])


def tiers_after(policy, sizes, kind, history) -> EngineTraffic:
    write_through, load_s, page = kind
    traffic = EngineTraffic(paged_tree_of(*sizes, policy=policy, write_through=write_through, load_s=load_s, page=page))
    for name, arguments in history:
        getattr(traffic, name)(**arguments)
        check_integrity(traffic.tree)
    traffic.end()
    return traffic


sizes = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))


kinds = st.tuples(st.booleans(), st.sampled_from([0.0, 0.7, 2.0]), st.sampled_from([1, PAGE]))


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.just(True), failures=False))
@settings(max_examples=200, deadline=None)
def test_tiers_match_the_tree_in_the_end(policy, sizes, kind, history):
    traffic = tiers_after(policy, sizes, kind, history)
    tiers, engines = traffic.tree.tiers, traffic.engines
    assert engines.gpu["one"] == traffic.believed(tiers.gpu("one")).keys()
    assert engines.disk == traffic.believed(tiers.disk).keys()
    believed = traffic.believed(tiers.host)
    assert set(engines.pages.values()) == {(pages.stamp, node) for node, pages in believed.items()}
    assert all(engines.has(node, HOST, "", pages) for node, pages in believed.items())


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.just(True), failures=True))
@settings(max_examples=300, deadline=None)
def test_tiers_hold_nothing_unknown_after_failures(policy, sizes, kind, history):
    traffic = tiers_after(policy, sizes, kind, history)
    tiers, engines = traffic.tree.tiers, traffic.engines
    assert engines.gpu["one"] <= traffic.believed(tiers.gpu("one")).keys()
    assert engines.disk <= traffic.believed(tiers.disk).keys()


@given(st.sampled_from(policy_names()), sizes, kinds, histories(st.booleans(), failures=True))
@settings(max_examples=300, deadline=None)
def test_gpus_hold_nothing_unknown_when_instances_interleave(policy, sizes, kind, history):
    # A disk may hold more, because it cannot tell which of two moves was decided first.
    traffic = tiers_after(policy, sizes, kind, history)
    for instance, there in traffic.engines.gpu.items():
        assert there <= traffic.believed(traffic.tree.tiers.gpu(instance)).keys()
