"""BELADY is optimal in the textbook case, and keeps the policy contract in all others."""

import pytest
from controller_integrity import check_integrity
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid
from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.document_order import order_by_name
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.plans import DocumentOrder
from ragtree_lab.simulation.comparison import PolicyBenchmark
from ragtree_lab.simulation.policies import simulated_policies
from ragtree_lab.simulation.policies.belady import Belady
from ragtree_lab.simulation.simulator import SimulatedService, Simulator, ordered_documents
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest, Workload

# One second per token at every position: flat costs.
DEVICE = DeviceProfile("toy", "made up", 1.0, 1.0, 1, PrefillGrid((0, 1000), (1, 1001), ((1.0, 1001.0), (1.0, 1001.0))))
TEXTBOOK = "70120304230321201701"
"""The reference string of operating systems textbooks."""
ANOMALY = "123412512345"
"""Reference string of Belady, Nelson and Shedler, for which FIFO has more faults with more room."""

references = st.text("abcdef", min_size=1, max_size=40)
small = settings(max_examples=examples(60), deadline=None)


class Paths(Workload):
    """Requests for these paths with one-token documents. The default gap lets each request end before the next."""

    name = "paths"

    def __init__(self, paths, gap_s: float = 1000.0, tokens=lambda document: 1):
        self._requests = [
            TraceRequest(number * gap_s, tuple(TraceDocument(id_, tokens(id_)) for id_ in path), 1)
            for number, path in enumerate(paths)
        ]

    @property
    def length(self):
        return len(self._requests)

    def requests(self):
        return iter(self._requests)


def hits(policy: str, trace: str, room: int) -> int:
    """Count the hits of single-document requests in a tier with this capacity."""
    result = PolicyBenchmark(DEVICE, Capacities(room), SimulatedService()).simulate(
        Paths(trace), policy, lambda *_: None
    )
    return round(result.doc_hit_rate * result.documents)


def most_hits(trace: str, room: int) -> int:
    """Return the most hits that any choice of evictions and refusals can have, by brute force."""
    best: dict[frozenset[str], int] = {frozenset(): 0}
    for document in trace:
        reached: dict[frozenset[str], int] = {}
        for kept, found in best.items():
            after = found + (document in kept)
            everything = kept | {document}
            choices = [kept] if len(everything) > room else [everything]
            if document not in kept and len(everything) > room:
                choices += [everything - {victim} for victim in kept]
            for choice in choices:
                reached[choice] = max(reached.get(choice, 0), after)
        best = reached
    return max(best.values())


@pytest.mark.parametrize(
    ("trace", "room", "lru", "optimum"),
    [
        # 20 references: LRU has 12 faults, the optimum that admits every document has 9.
        (TEXTBOOK, 3, 8, 11),
        # 12 references: LRU has 10 faults with three frames and 8 with four, the optimum 7 and 6.
        (ANOMALY, 3, 2, 5),
        (ANOMALY, 4, 4, 6),
        # A loop that is one document too long: LRU has no hits, the optimum keeps all documents but one.
        ("abcabcabc", 2, 0, 3),
        ("aba", 1, 0, 1),
    ],
)
def test_textbook_sequences_have_known_hits(trace, room, lru, optimum):
    assert hits("LRU", trace, room) == lru
    # The textbook's optimum admits every document. A policy that may refuse some has at least as many hits.
    assert hits("BELADY", trace, room) == most_hits(trace, room) >= optimum


@given(references, st.integers(1, 4))
@example(TEXTBOOK, 3)
@small
def test_hits_are_optimal_for_equal_documents_in_one_tier(trace, room):
    assert hits("BELADY", trace, room) == most_hits(trace, room)


@given(references, st.integers(1, 4))
@settings(max_examples=examples(25), deadline=None)
def test_no_policy_has_more_hits_for_equal_documents_in_one_tier(trace, room):
    best = hits("BELADY", trace, room)
    assert all(hits(policy, trace, room) <= best for policy in simulated_policies())


@given(references)
@small
def test_each_document_misses_once_if_all_fit(trace):
    assert hits("BELADY", trace, 6) == len(trace) - len(set(trace))


def test_document_used_later_than_all_others_is_refused():
    # a is needed before b and c, so it stays.
    assert hits("BELADY", "abacabc", 1) == 2 + 0
    assert hits("LRU", "abacabc", 1) == 0


def test_unused_document_is_evicted_first():
    # a is never requested again, so it is evicted, although b and c are less recent.
    assert hits("BELADY", "bcadbcd", 3) == 3
    assert hits("LRU", "bcadbcd", 3) == 1


# Knowledge of the future


def a_second_a_token(cached: int, new: int) -> float:
    return float(new)


def tree_of(future: list[str], room: int = 10) -> KnowledgeTree:
    policy = Belady(Lookahead(), (path_keys("tenant", path) for path in future))
    return KnowledgeTree(policy, KvStorage(Capacities(room)), ["one"], TreeCosts(a_second_a_token))


def serve(tree: KnowledgeTree, *paths: str) -> None:
    for path in paths:
        documents = [PathDocument(content, 1) for content in path]
        grant = tree.grants.admit(path, "tenant", documents, path_keys("tenant", path), 0, "one", 0.0)
        tree.grants.complete(grant, kept=True, unwritten=())


def priority(tree: KnowledgeTree, path: str) -> float:
    [copy] = tree.registry.nodes[path_keys("tenant", path)[-1]].copies
    return tree.policy.current(copy)


def test_priority_is_cost_over_requests_until_the_next_use():
    tree = tree_of(["a", "b", "c", "b", "a"])
    serve(tree, "a")
    # This is the first request, and the fifth uses a.
    assert priority(tree, "a") == pytest.approx(1 / 4)
    serve(tree, "b")
    assert (priority(tree, "a"), priority(tree, "b")) == pytest.approx((1 / 3, 1 / 2))
    serve(tree, "c")
    assert (priority(tree, "a"), priority(tree, "b"), priority(tree, "c")) == pytest.approx((1 / 2, 1, 0))


def test_equal_documents_after_different_prefixes_are_different():
    tree = tree_of(["ab", "b", "b"])
    serve(tree, "ab", "b")
    assert (priority(tree, "a"), priority(tree, "ab"), priority(tree, "b")) == pytest.approx((0, 0, 1))


def test_lower_priority_after_a_use_is_noticed():
    # After its last use, a is evicted first, although its priority was the highest before.
    tree = tree_of(["a", "b", "a", "c", "b", "c"], room=2)
    serve(tree, "a", "b", "a", "c")
    assert {node.content for node in tree.registry.nodes.values()} == {"b", "c"}


# Cases in which BELADY is not optimal


@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), min_size=1, max_size=40),
    st.builds(Capacities, st.integers(0, 12), st.integers(0, 12), st.integers(0, 12)),
    st.sampled_from([DocumentOrder.RETRIEVAL, DocumentOrder.CANONICAL]),
    st.integers(1, 2),
    st.sampled_from([0.5, 4.0]),
)
@small
def test_every_use_is_served_with_any_sizes_tiers_instances_and_reordering(paths, room, order, instances, gap_s):
    workload = Paths(paths, gap_s, "_abcd".index)
    strategy = order_by_name(order)
    future = [
        path_keys("", [document.content for document in ordered_documents(request, strategy, None)])
        for request in workload.requests()
    ]
    lookahead = Lookahead()
    policy = Belady(lookahead, future)
    tree = KnowledgeTree(
        policy, KvStorage(room), [str(number) for number in range(instances)], TreeCosts(DEVICE.prefill_seconds)
    )
    service = SimulatedService(instances, max_running=2, max_queued=2, order=order)
    scheduler = Scheduler(tree, lookahead, service.max_running, service.max_queued, service.reorder_window)
    result = Simulator(scheduler, DEVICE, service).run(workload, lambda _: None)
    assert result.requests == len(paths)
    assert result.documents == sum(map(len, paths))
    assert not policy._uses, "a use was never served"
    check_integrity(tree)
