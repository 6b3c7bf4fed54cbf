"""After random traffic, the tiers hold exactly the copies that the tree believes in."""

from types import SimpleNamespace

from controller_integrity import check_integrity
from example_counts import examples
from histories import event
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tree_cases import DISK, GPU, begin, saves, tokens_of, tree_of

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import Copy
from cachectl.policies import policy_names
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.restore import restore
from protocol.kv import HeldNode, Move, ResidencyReport
from protocol.tiers import Tier


class DataPlane:
    """The tiers' contents, as a set of keys for each cache, after all moves, loads and saves."""

    def __init__(self) -> None:
        self.caches: dict[tuple[Tier, str | None], set[str]] = {}
        self.names: dict[str, HeldNode] = {}

    def at(self, tier: Tier, instance: str | None) -> set[str]:
        return self.caches.setdefault((tier, instance if tier is GPU else None), set())

    def carry_out(self, moves: list[Move]) -> None:
        for move in moves:
            source = self.at(move.source, move.instance)
            if move.target is not None:
                target = self.at(move.target, move.instance)
                # The moves of a failed plan are carried out again, and the copy may have moved on to disk since.
                assert move.node in source | target | self.at(DISK, None), "a move copies a document that is not there"
                if move.node in source:
                    target.add(move.node)
            if move.evict:
                source.discard(move.node)

    def used(self, keys: set[str]) -> int:
        return sum(self.names[key].tokens for key in keys)

    def name(self, namespace: str, path: str) -> None:
        """Record the documents of a path's keys."""
        for depth, key in enumerate(path_keys(namespace, path), start=1):
            self.names[key.hex()] = HeldNode(namespace, tuple(path[:depth]), tokens_of(path[depth - 1]))

    def report(self) -> list[ResidencyReport]:
        return [
            ResidencyReport(tier, tuple(self.names[key] for key in sorted(keys)), instance)
            for (tier, instance), keys in self.caches.items()
        ]


class Traffic:
    """Random plans on a tree, and the tiers as its moves change them.

    A plan's moves are carried out at its admission. Its copies are saved when it is prefilled, or complete and kept. At
    every moment the tiers hold all copies that the tree believes in or running plans use, and have room for all copies
    that running plans will save.
    """

    def __init__(self, tree: KnowledgeTree) -> None:
        self.tree = tree
        self.plane = DataPlane()
        self.plans: list[SimpleNamespace] = []

    def admit(self, path: str, namespace: str, first: bool, system: bool) -> None:
        instance = (list(self.tree.tiers.gpus) * 2)[not first]
        grant = begin(self.tree, "s" + path if system else path, instance, namespace, pinned=int(system))
        assert saves(grant) == {(copy.node.key, copy.cache.tier) for copy in grant.reserved}
        self.plane.name(namespace, "s" + path if system else path)
        self.plane.carry_out(grant.moves)
        loads = {(bytes.fromhex(step.key), step.source) for step in grant.documents if step.source is not None}
        self.plans.append(SimpleNamespace(grant=grant, loads=loads, saves=saves(grant), broken=set()))

    def prefill(self, plan: int, lost: list[int]) -> None:
        if self.plans:
            prefilled = self.plans[plan % len(self.plans)]
            self.tree.grants.prefilled(prefilled.grant, self.execute(prefilled, True, lost))
            # It uses the copies that it loaded until it is complete.
            prefilled.saves = set()

    def complete(self, plan: int, kept: bool, lost: list[int]) -> None:
        if self.plans:
            completed = self.plans.pop(plan % len(self.plans))
            missing = self.execute(completed, kept, lost)
            self.tree.grants.complete(completed.grant, kept, missing, unwritten=())

    def execute(self, plan: SimpleNamespace, kept: bool, lost: list[int]) -> list[tuple[bytes, Tier]]:
        """Load and save a plan's copies; those that could not be loaded or saved."""
        instance = plan.grant.instance
        candidates = sorted(plan.loads | plan.saves)
        gone = {candidates[index % len(candidates)] for index in lost if candidates}
        for key, tier in gone & plan.loads:
            self.plane.at(tier, instance).discard(key.hex())
            for other in self.plans:
                if (key, tier) in other.loads and (tier is not GPU or other.grant.instance == instance):
                    other.loads.remove((key, tier))
                    other.broken.add((key, tier))
        for key, tier in plan.saves - gone if kept else ():
            self.plane.at(tier, instance).add(key.hex())
        plan.loads -= gone
        gone |= plan.broken
        plan.broken = set()
        return sorted(gone)

    def delete(self, content: str, namespace: str | None) -> None:
        self.tree.delete(content, namespace)

    def restore(self) -> None:
        """Report the tiers' contents to the tree."""
        restore(self.tree, self.plane.report())

    def replace_instance(self) -> None:
        """Remove the second instance with its plans, or add it again."""
        if "two" not in self.tree.tiers.gpus:
            self.tree.tiers.add_instance("two")
            return
        self.tree.remove_instance("two")
        self.plane.caches.pop((GPU, "two"), None)
        self.plans = [plan for plan in self.plans if plan.grant.instance != "two"]

    def check(self) -> None:
        check_integrity(self.tree)
        for cache in self.tree.tiers:
            there = self.plane.at(cache.tier, cache.instance)
            confirmed = {key for key, copy in self.believed(cache).items() if copy.confirmed}
            assert confirmed <= there, "the tree believes in a copy that is not there"
            plans = [plan for plan in self.plans if cache.instance in (None, plan.grant.instance)]
            used = {key.hex() for plan in plans for key, tier in plan.loads if tier is cache.tier}
            assert used <= there, "a copy that a running plan uses is gone"
            coming = {key.hex() for plan in plans for key, tier in plan.saves if tier is cache.tier}
            # An instance drops what it has written when it hears of it; others may use the room before.
            leaving = {move.node for move in self.tree.tiers.pending_moves if move.evict and move.source is cache.tier}
            taken = there - leaving | coming
            assert self.plane.used(taken) <= cache.capacity, "no room for the copies that running plans save"

    def end(self) -> None:
        """Complete all plans and moves, and compare the tiers with the tree."""
        while self.plans:
            self.complete(0, kept=True, lost=[])
            self.check()
        for instance in self.tree.tiers.gpus:
            self.plane.carry_out(begin(self.tree, "", instance).moves)
        for cache in self.tree.tiers:
            assert self.plane.at(cache.tier, cache.instance) == self.believed(cache).keys()

    def believed(self, cache) -> dict[str, Copy]:
        """The copies in a cache, by their nodes' keys."""
        copies = [copy for node in self.tree.registry.nodes.values() for copy in node.copies]
        return {copy.node.key.hex(): copy for copy in copies if copy.cache is cache and copy.held}


lost = st.just([]) | st.just([]) | st.lists(st.integers(0, 7), min_size=1, max_size=2)


admissions = event(
    "admit",
    path=st.lists(st.sampled_from("abD"), min_size=1, max_size=3).map("".join),
    namespace=st.sampled_from("xxy"),
    first=st.booleans(),
    system=st.booleans(),
)


completions = event("complete", plan=st.integers(0, 7), kept=st.sampled_from([True, True, True, False]), lost=lost)


incidents = [
    event("prefill", plan=st.integers(0, 7), lost=lost),
    event("delete", content=st.sampled_from("sabD"), namespace=st.sampled_from([None, "x", "y"])),
    event("replace_instance"),
    event("restore"),
]


# Most events admit or complete plans. Several lists, because a single list is mostly a short one.
events = st.sampled_from([*[admissions] * 6, *[completions] * 4, *incidents]).flatmap(lambda kind: kind)


histories = st.tuples(*[st.lists(events, max_size=12)] * 5).map(
    lambda parts: [event for part in parts for event in part]
)


@given(
    st.sampled_from(policy_names()),
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8)),
    histories,
)
@settings(max_examples=examples(400), deadline=None, report_multiple_bugs=False, phases=set(Phase) - {Phase.explain})
def test_moves_loads_and_saves_make_the_tiers_match_the_tree(policy, capacities, history):
    traffic = Traffic(tree_of(*capacities, policy=policy))
    for name, arguments in history:
        getattr(traffic, name)(**arguments)
        traffic.check()
    traffic.end()
