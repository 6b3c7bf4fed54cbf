"""The contract of replacement policies (cachectl/policies/base.py), as tests that each policy runs."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import Copy, PathDocument
from cachectl.policies.base import ReplacementPolicy
from cachectl.policies.eviction_order import EvictionOrder
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.tiers import Tier

PolicyFactory = Callable[[Lookahead, Sequence[Sequence[bytes]]], ReplacementPolicy]
"""Creates a policy. Arguments: the lookahead, and the keys of all requests in order, for clairvoyant policies."""

NAMESPACE = "tenant"
TOKENS = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 8}
"""Tokens of the documents of traces. All others have one token."""

ROOM = 10_000
"""More room than any trace needs."""

paths = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=4, unique=True).map("".join)
traces = st.lists(paths, min_size=1, max_size=30)
budgets = st.builds(Capacities, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))

tried = settings(max_examples=examples(60), deadline=None)


def tree_for(make_policy: PolicyFactory, trace: Sequence[str], capacities: Capacities) -> KnowledgeTree:
    """A tree of one instance, for this trace. Tokens cost more the deeper they stand."""
    policy = make_policy(Lookahead(), [path_keys(NAMESPACE, path) for path in trace])
    return KnowledgeTree(
        policy, KvStorage(capacities), ["one"], TreeCosts(lambda cached, new: 0.01 + new * (1 + cached / 10))
    )


def grant_of(tree: KnowledgeTree, path: str) -> Grant:
    documents = [PathDocument(content, TOKENS.get(content, 1)) for content in path]
    return tree.grants.admit(
        str(tree.grants.tick), NAMESPACE, documents, path_keys(NAMESPACE, path), 0, "one", float(tree.grants.tick)
    )


def serve(tree: KnowledgeTree, trace: Sequence[str], waiting: int = 3) -> Iterator[Grant]:
    """Serve requests in order, while the next ``waiting`` ones wait. Yields the completed grants."""
    lookahead = tree.policy.lookahead
    entered = 0
    for number, path in enumerate(trace):
        for later in trace[entered : number + 1 + waiting]:
            lookahead.enter(f"waiting {entered}", path_keys(NAMESPACE, later))
            entered += 1
        lookahead.leave(f"waiting {number}")
        grant = grant_of(tree, path)
        tree.grants.complete(grant, kept=True, unwritten=())
        yield grant


def cached(tree: KnowledgeTree, path: str) -> list[Tier]:
    return [copy.cache.tier for copy in tree.lookup.match(NAMESPACE, path, "one")]


def leaves(tree: KnowledgeTree, cache: object) -> list[Copy]:
    """The copies that may leave a tier cache now, derived from the tree."""
    here = [node.copy_in(cache) for node in tree.registry.nodes.values() if node.copy_in(cache)]
    parents = {copy.node.parent for copy in here}
    return [
        copy for copy in here if copy.held and not copy.node.locks and not copy.node.pins and copy.node not in parents
    ]


class WatchedOrder(EvictionOrder):
    """Wraps a tier cache's order, and calls ``look`` with each copy that is about to be evicted."""

    def __init__(self, cache: TierCache, look: Callable[[Copy], None]) -> None:
        self._cache = cache
        self._look = look
        self._seen = cache.evictions
        self._order = cache._order

    def enter(self, copy: Copy) -> None:
        self._order.enter(copy)

    def void(self, copy: Copy) -> None:
        # The cache counts an eviction before it takes the copy out.
        if self._cache.evictions > self._seen:
            self._seen = self._cache.evictions
            self._look(copy)
        self._order.void(copy)

    def touch(self, copy: Copy) -> None:
        self._order.touch(copy)

    def reconsider(self, copy: Copy) -> None:
        self._order.reconsider(copy)

    def lowest(self) -> tuple[Copy, float] | None:
        return self._order.lowest()

    def lowest_few(self, count: int) -> list[Copy]:
        return self._order.lowest_few(count)


def watch_evictions(tree: KnowledgeTree, look: Callable[[Copy], None]) -> None:
    """Call ``look`` with each copy that is about to be evicted."""
    for cache in tree.tiers:
        cache._order = WatchedOrder(cache, look)


class PolicyContract:
    """Needs a fixture ``make_policy`` of scope "class", a ``PolicyFactory``."""

    @given(traces, budgets)
    @tried
    def test_no_tier_cache_exceeds_its_capacity(self, make_policy: PolicyFactory, trace, capacities):
        tree = tree_for(make_policy, trace, capacities)
        for _ in serve(tree, trace):
            for cache, capacity in zip(tree.tiers, capacities, strict=True):
                held = sum(node.tokens for node in tree.registry.nodes.values() if node.copy_in(cache))
                assert held == cache.used <= capacity

    @given(traces, budgets)
    @tried
    def test_three_tiers_keep_integrity(self, make_policy: PolicyFactory, trace, capacities):
        tree = tree_for(make_policy, trace, capacities)
        for _ in serve(tree, trace):
            check_integrity(tree)

    @given(traces, budgets)
    @tried
    def test_a_request_whose_documents_are_all_in_the_gpu_moves_nothing(
        self, make_policy: PolicyFactory, trace, capacities
    ):
        trace = [path for path in trace for _ in range(2)]
        tree = tree_for(make_policy, trace, capacities)

        def state() -> tuple[dict, list[int]]:
            copies = {key: list(node.copies) for key, node in tree.registry.nodes.items()}
            return copies, [cache.evictions for cache in tree.tiers]

        before = state()
        for grant in serve(tree, trace):
            if all(step.source is Tier.GPU for step in grant.documents):
                assert not grant.reserved
                assert state() == before
            before = state()

    @given(traces, st.builds(Capacities, *[st.integers(0, 12)] * 3))
    @tried
    def test_the_leaf_of_lowest_priority_is_evicted(self, make_policy: PolicyFactory, trace, capacities):
        """Sampled orders are exact in tier caches as small as these."""
        tree = tree_for(make_policy, trace, capacities)
        policy = tree.policy

        evicted = 0

        def goes_next(victim: Copy) -> None:
            nonlocal evicted
            evicted += 1
            candidates = leaves(tree, victim.cache)
            assert victim in candidates
            assert policy.current(victim) == min(policy.current(copy) for copy in candidates)

        watch_evictions(tree, goes_next)
        for _ in serve(tree, trace):
            pass
        assert evicted == sum(cache.evictions for cache in tree.tiers)

    @given(traces, budgets, st.data())
    @tried
    def test_the_eviction_order_holds_when_requests_give_up_waiting(
        self, make_policy: PolicyFactory, trace, capacities, data
    ):
        """Priorities fall when requests give up waiting, and none may be below the one that was entered."""
        tree = tree_for(make_policy, trace, capacities)
        lookahead = tree.policy.lookahead
        for number, _ in enumerate(serve(tree, trace)):
            lookahead.enter(f"passing {number}", path_keys(NAMESPACE, data.draw(paths)))
            if data.draw(st.booleans()):
                tree.reconsider(lookahead.leave(f"passing {number}"))
            check_integrity(tree)

    @given(traces, st.integers(4, 8))
    @tried
    def test_locked_and_pinned_nodes_stay(self, make_policy: PolicyFactory, trace, capacity):
        tree = tree_for(make_policy, ["ab", "x", "ab", *trace], Capacities(capacity))
        for path in ("ab", "x"):
            tree.grants.complete(grant_of(tree, path), kept=True, unwritten=())
        locked, pinned = cached(tree, "ab"), cached(tree, "x")
        running = grant_of(tree, "ab")
        if pinned:
            tree.pin(NAMESPACE, "x")
        for _ in serve(tree, trace):
            assert cached(tree, "ab")[: len(locked)] == locked
            assert cached(tree, "x")[: len(pinned)] == pinned
        tree.grants.complete(running, kept=True, unwritten=())
        check_integrity(tree)

    @given(traces, budgets)
    @tried
    def test_the_same_trace_leads_to_the_same_decisions(self, make_policy: PolicyFactory, trace, capacities):
        once, again = (
            [(grant.documents, grant.moves) for grant in serve(tree_for(make_policy, trace, capacities), trace)]
            for _ in range(2)
        )
        assert once == again

    @given(traces)
    @tried
    def test_everything_is_kept_if_there_is_room(self, make_policy: PolicyFactory, trace):
        tree = tree_for(make_policy, trace, Capacities(ROOM, ROOM, ROOM))
        keeps = tree.policy.keeps
        for path, grant in zip(trace, serve(tree, trace), strict=True):
            assert not grant.moves
            assert cached(tree, path) == ([Tier.GPU] * len(path) if keeps else [])
        for path in trace:
            assert len(cached(tree, path)) == (len(path) if keeps else 0)

    @pytest.mark.parametrize("capacities", [Capacities(1), Capacities(0, 1), Capacities(0, 0, 1)])
    def test_a_document_requested_n_times_is_found_n_minus_one_times(self, make_policy: PolicyFactory, capacities):
        trace = ["a"] * 20
        tree = tree_for(make_policy, trace, capacities)
        hits = [grant.documents[0].source is not None for grant in serve(tree, trace)]
        assert sum(hits) == (19 if tree.policy.keeps else 0)
