"""The tree, queue and scheduler reproduce counts that the RAGCache paper works out by hand."""

import pytest
import scheduler_cases
from controller_integrity import check_integrity
from tree_cases import TENANT, ask, linear_cost, tree_of

from cachectl.scheduling.queue import CacheAwareQueue, Work
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree

# Two requests and the order in which they are served, after RAGCache's Figure 10.
#
# The figure gives each of two queries a cached and a computed length. It counts all tokens to compute, with those that
# the first query evicts and the second must compute again. It shows lengths, not documents. Here each query has two
# documents: one is cached (lower case), and one is not (upper case). The queries share no document. The capacity makes
# the first query evict the other's cached document. The sums are then the paper's, term by term.
#
#   scenario 1   capacity 4   Q1 = p P, 1 cached and 2 to compute    Q2 = q Q, 2 cached and 2 to compute
#     {Q1, Q2}   P 2; 3 of 4 are in use, so q is evicted; Q2 computes q 2 and Q 2        2 + 2 + 2 = 6
#     {Q2, Q1}   Q 2; p is evicted; Q1 computes p 1 and P 2                              2 + 1 + 2 = 5
#   scenario 2   capacity 5   Q1 = p P, 2 cached and 2 to compute    Q2 = q Q, 2 cached and 1 to compute
#     {Q1, Q2}   P 2; 4 of 5 are in use, so q is evicted; Q2 computes q 2 and Q 1        2 + 2 + 1 = 5
#     {Q2, Q1}   Q 1 fits into the last free token; Q1 still finds p and computes P 2    1 + 2     = 3

SCENARIOS = {
    "the same computation, a longer cached context": (4, {"p": 1, "P": 2, "q": 2, "Q": 2}, 6, 5),
    "the same cached context, a shorter computation": (5, {"p": 2, "P": 2, "q": 2, "Q": 1}, 5, 3),
}
QUERIES = {"Q1": "pP", "Q2": "qQ"}

scenarios = pytest.mark.parametrize(("capacity", "tokens", "as_given", "reordered"), SCENARIOS.values(), ids=SCENARIOS)


def prefill(tree: KnowledgeTree, path: str, tokens: dict[str, int]) -> int:
    """Serve a request; the tokens that had to be computed."""
    grant = ask(tree, path, tokens=tokens.__getitem__)
    return sum(step.tokens for step in grant.documents if step.source is None)


def with_contexts_cached(capacity: int, tokens: dict[str, int]) -> KnowledgeTree:
    tree = tree_of(capacity, policy="PGDSF", cost=linear_cost, instances=["one"])
    for context in "pq":
        prefill(tree, context, tokens)
    return tree


def lengths(tree: KnowledgeTree, path: str, tokens: dict[str, int]) -> tuple[int, int]:
    """Cached and computed tokens of a request, given the present tree."""
    cached = sum(copy.node.tokens for copy in tree.lookup.match(TENANT, path, "one"))
    return cached, sum(tokens[content] for content in path) - cached


@scenarios
def test_the_order_of_two_requests_decides_what_is_computed_again(capacity, tokens, as_given, reordered):
    costs = []
    for order in [("Q1", "Q2"), ("Q2", "Q1")]:
        tree = with_contexts_cached(capacity, tokens)
        costs.append(sum(prefill(tree, QUERIES[query], tokens) for query in order))
    assert costs == [as_given, reordered]


@scenarios
@pytest.mark.parametrize("arrival", [("Q1", "Q2"), ("Q2", "Q1")])
def test_order_priority_chooses_the_cheaper_order(capacity, tokens, as_given, reordered, arrival):
    # OrderPriority is 1/2 and 2/2 in scenario 1, and 2/2 and 2/1 in scenario 2. Q2 goes first in any order of arrival.
    tree = with_contexts_cached(capacity, tokens)
    queue = CacheAwareQueue(2, window=1, refresh=lambda query: Work(*lengths(tree, QUERIES[query], tokens)))
    for query in arrival:
        queue.push(query, Work(*lengths(tree, QUERIES[query], tokens)))
    served = {}
    while (turn := queue.pop()) is not None:
        served[turn.query_id] = prefill(tree, QUERIES[turn.query_id], tokens)
    assert list(served) == ["Q2", "Q1"]
    assert sum(served.values()) == reordered


@scenarios
def test_without_a_reorder_window_the_more_expensive_order_stays(capacity, tokens, as_given, reordered):
    tree = with_contexts_cached(capacity, tokens)
    queue = CacheAwareQueue(2, window=0)
    for query, path in QUERIES.items():
        queue.push(query, Work(*lengths(tree, path, tokens)))
    assert sum(prefill(tree, QUERIES[query], tokens) for query, _ in iter(queue.pop, None)) == as_given


# RAGCache's example of why order matters (section 5.2). Q1, Q3 and Q5 use one set of documents, and Q2, Q4 and Q6 use
# another. The cache holds one set. In order of arrival, each request evicts the set that the next one needs: 0 of 6
# hit. In the order {Q1, Q3, Q5, Q2, Q4, Q6}, only the first of each set misses: 4 of 6 hit, which is 66 %.

SETS = {"Q1": "ab", "Q2": "cd", "Q3": "ab", "Q4": "cd", "Q5": "ab", "Q6": "cd"}


def serve_all(window: int) -> list[Grant]:
    """Serve all six on an instance with one slot; the grants in order of service."""
    scheduler = scheduler_cases.build_scheduler(gpu=2 * scheduler_cases.TOKENS, max_queued=5, window=window)
    granted = []
    for query, path in SETS.items():
        grant = scheduler.admit(scheduler_cases.ask(query, path), 0.0)
        granted += [] if grant is None else [grant]
    for grant in granted:
        granted += scheduler.complete(grant.query_id, 0.0, kept=True)
        check_integrity(scheduler)
    return granted


def hit_rate(granted: list[Grant]) -> float:
    return sum(all(step.source for step in grant.documents) for grant in granted) / len(granted)


def test_alternating_requests_miss_in_order_of_arrival():
    granted = serve_all(window=0)
    assert [grant.query_id for grant in granted] == ["Q1", "Q2", "Q3", "Q4", "Q5", "Q6"]
    assert not any(step.source for grant in granted for step in grant.documents)
    assert hit_rate(granted) == 0


def test_reordering_by_cached_share_lets_two_thirds_of_them_hit():
    granted = serve_all(window=32)
    assert [grant.query_id for grant in granted] == ["Q1", "Q3", "Q5", "Q2", "Q4", "Q6"]
    assert hit_rate(granted) == pytest.approx(4 / 6)


def test_a_window_of_one_overtake_lets_half_of_them_hit():
    # Q3 overtakes Q2, which goes next. Then Q4 is the oldest, and Q6 overtakes Q5. Q3, Q4 and Q6 hit.
    granted = serve_all(window=1)
    assert [grant.query_id for grant in granted] == ["Q1", "Q3", "Q2", "Q4", "Q6", "Q5"]
    assert hit_rate(granted) == pytest.approx(3 / 6)
