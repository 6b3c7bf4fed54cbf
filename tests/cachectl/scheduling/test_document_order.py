"""Document orders are permutations. Cached-first finds the longest cached prefix within a bound on lookups."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.scheduling.document_order import (
    VISIT_BUDGET,
    CachedFirstOrder,
    DocumentOrder,
    canonical_order,
    order_by_name,
    retrieval_order,
)
from protocol.errors import ConfigError

KEYS = "abcdef"


class Node:
    """A cached document. All nodes of a tree record their lookups in one list."""

    def __init__(self, tokens: int, lookups: list[str]) -> None:
        self.tokens = tokens
        self.children: dict[str, Node] = {}
        self.lookups = lookups

    def child(self, key: str) -> "Node | None":
        self.lookups.append(key)
        return self.children.get(key)


class EveryOrder:
    """A tree that holds every order of some one-token documents and counts lookups."""

    tokens = 1

    def __init__(self, cached: str) -> None:
        self.cached = cached
        self.lookups = 0

    def child(self, key: str) -> "EveryOrder | None":
        self.lookups += 1
        return self if key in self.cached else None


def tree(paths, sizes=None) -> Node:
    """The root of a tree that holds ``paths``. ``sizes`` are the documents' tokens, one by default."""
    root = Node(1000, [])
    for path in paths:
        node = root
        for key in path:
            node = node.children.setdefault(key, Node((sizes or {}).get(key, 1), root.lookups))
    return root


def cached_tokens(documents, order, root) -> int:
    tokens, node = 0, root
    for index in order:
        node = node.child(documents[index])
        if node is None:
            break
        tokens += node.tokens
    return tokens


def best_of_all(documents, root) -> tuple[int, ...]:
    orders = permutations(range(len(documents)))  # lexicographic, so ties go to the order nearest to the ranks
    return max(orders, key=lambda order: cached_tokens(documents, order, root))


lists_of_documents = st.lists(st.sampled_from(KEYS), max_size=6)
paths = lists_of_documents | st.permutations(KEYS)
trees = st.builds(
    tree,
    st.lists(paths, max_size=20),
    st.fixed_dictionaries({key: st.integers(0, 5) for key in KEYS}),
)


@pytest.mark.parametrize("name", DocumentOrder)
@given(documents=lists_of_documents, root=st.none() | trees)
def test_every_order_is_a_deterministic_permutation(name, documents, root):
    order = order_by_name(name)
    found = order(documents, root)
    assert sorted(found) == list(range(len(documents)))
    assert order(tuple(documents), root) == found


def test_an_unknown_order_name_is_refused_with_the_known_names():
    with pytest.raises(ConfigError, match="'random'; there are retrieval, canonical, cached-first"):
        order_by_name("random")


def test_retrieval_order_changes_nothing():
    assert retrieval_order("cab", tree(["abc"])) == (0, 1, 2)


@given(st.data(), lists_of_documents)
def test_canonical_order_is_the_same_for_all_rankings_of_a_set(data, documents):
    ranking = data.draw(st.permutations(documents))
    assert [ranking[index] for index in canonical_order(ranking, None)] == sorted(documents)


def test_canonical_order_keeps_equal_documents_by_rank():
    assert canonical_order("baba", None) == (1, 3, 0, 2)


@given(lists_of_documents, trees)
def test_cached_first_matches_a_search_of_all_permutations(documents, root):
    assert CachedFirstOrder()(documents, root) == best_of_all(documents, root)


def test_cached_first_counts_tokens_not_documents():
    root = tree(["ab", "c"], {"a": 10, "b": 10, "c": 50})
    assert CachedFirstOrder()("abc", root) == (2, 0, 1)


def test_cached_first_appends_uncached_documents_in_retrieval_order():
    assert CachedFirstOrder()("xcyaz", tree(["ac"])) == (3, 1, 0, 2, 4)


def test_cached_first_breaks_ties_by_rank():
    assert CachedFirstOrder()("xab", tree(["ba", "ab"])) == (1, 2, 0)


def test_cached_first_uses_a_document_once_per_retrieved_copy():
    root = tree(["aaa"])
    assert CachedFirstOrder()("baca", root) == (1, 3, 0, 2)
    assert cached_tokens("baca", (1, 3, 0, 2), root) == 2


@pytest.mark.parametrize("root", [None, tree([])])
def test_cached_first_is_retrieval_order_if_nothing_is_cached(root):
    assert CachedFirstOrder()("cab", root) == (0, 1, 2)


def test_a_wide_tree_costs_lookups_along_the_documents_own_paths_only():
    documents = [f"d{number}" for number in range(10)]
    others = [[f"other{number}", *documents] for number in range(1000)]
    root = tree([*others, ["d0", "d1"], ["d9", "d4", "d7"], ["d9", "other1", "d0"]])
    assert CachedFirstOrder()(documents, root)[:3] == (9, 4, 7)
    visited = ["root", "d0", "d0 d1", "d9", "d9 d4", "d9 d4 d7"]
    assert len(root.lookups) <= len(visited) * len(documents)


def test_documents_cached_in_every_order_cost_one_path():
    root = EveryOrder("abcdefghij")
    assert CachedFirstOrder()("abcdefghij", root) == tuple(range(10))
    assert root.lookups == 10


def test_equal_documents_are_looked_up_once():
    root = tree(["aaa"])
    assert CachedFirstOrder()("a" * 10, root) == tuple(range(10))
    assert root.lookups == ["a", "a", "a", "a"]


def test_six_documents_are_searched_exhaustively():
    almost_all = {path[:5] for path in permutations("abcdef")} - {tuple("fedcb")}
    root = tree([*(path[:4] for path in permutations("abcdef")), *almost_all, "fedcba"])
    assert CachedFirstOrder()("abcdef", root) == (5, 4, 3, 2, 1, 0)


def test_the_budget_bounds_the_lookups_of_the_worst_tree():
    root = EveryOrder("abcdefghi")  # "j" is never cached, so no path holds every document
    assert CachedFirstOrder()("jabcdefghi", root) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
    assert root.lookups <= VISIT_BUDGET * 10


@given(lists_of_documents, trees, st.integers(0, 20))
def test_a_short_budget_is_never_worse_than_retrieval_order(documents, root, spare):
    order = CachedFirstOrder(visit_budget=len(documents) + 1 + spare)(documents, root)
    assert sorted(order) == list(range(len(documents)))
    in_retrieval_order = cached_tokens(documents, range(len(documents)), root)
    assert cached_tokens(documents, order, root) >= in_retrieval_order


def test_with_a_score_gap_only_documents_of_near_scores_change_places():
    root = tree(["c", "b"], {"c": 9, "b": 5})
    scores = (0.90, 0.88, 0.70)
    assert CachedFirstOrder()("abc", root, scores) == (2, 0, 1)
    # c is too far behind a.
    assert CachedFirstOrder(score_gap=0.05)("abc", root, scores) == (1, 0, 2)
    assert CachedFirstOrder(score_gap=0.01)("abc", root, scores) == (0, 1, 2)
    # Without scores there is nothing to compare.
    assert CachedFirstOrder(score_gap=0.01)("abc", root) == (2, 0, 1)


def test_a_document_may_follow_what_stands_far_in_front_of_it():
    # c is far behind a, but near b. Once a has its place, c may stand in front of b.
    root = tree(["acb"])
    assert CachedFirstOrder(score_gap=0.1)("abc", root, (0.9, 0.55, 0.5)) == (0, 2, 1)


@given(documents=st.text(KEYS, max_size=5), paths=st.lists(st.text(KEYS, max_size=5), max_size=8), data=st.data())
def test_within_a_score_gap_the_prefix_is_the_longest_of_all_allowed_orders(documents, paths, data):
    gap = data.draw(st.integers(0, 4))
    falling = st.lists(st.integers(0, 9), min_size=len(documents), max_size=len(documents))
    scores = sorted(data.draw(falling), reverse=True)
    root = tree(paths)

    def allowed(order) -> bool:
        return all(
            scores[better] - scores[index] <= gap for place, index in enumerate(order) for better in order[place + 1 :]
        )

    order = CachedFirstOrder(score_gap=gap)(documents, root, scores)
    assert allowed(order)
    best = max(cached_tokens(documents, each, root) for each in permutations(range(len(documents))) if allowed(each))
    assert cached_tokens(documents, order, root) == best
