"""Document orders: how a query's documents are arranged in its prompt.

A prefix cache finds a document only after the same documents as before, so the order decides how much is reused. Every
strategy permutes the documents and drops none. No strategy reads their text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from protocol.errors import ConfigError
from protocol.plans import DocumentOrder

VISIT_BUDGET = 1250
"""Six documents have 1,237 ordered selections that lack at least one. A path with all six ends the search."""


class CachedNode(Protocol):
    """What a strategy sees of the knowledge tree: a cached document in one path, or the root of all paths."""

    @property
    def tokens(self) -> int:
        """Tokens of this document alone. A root's are not used."""

    def child(self, key: str) -> "CachedNode | None":
        """The cached node of the document ``key`` right after this one, if there is one."""


class OrderStrategy(Protocol):
    """A rule that orders documents. Pure: the same documents over the same tree give the same order."""

    def __call__(
        self, documents: Sequence[str], root: CachedNode | None, scores: Sequence[float] = ()
    ) -> tuple[int, ...]:
        """Indices into ``documents`` (content keys, best first) in prompt order.

        A repeated key is two documents. ``root`` is None if nothing is cached. ``scores`` are the documents' search
        scores, in falling order; empty if they are unknown.
        """


def retrieval_order(
    documents: Sequence[str],
    root: CachedNode | None,  # noqa: ARG001
    scores: Sequence[float] = (),  # noqa: ARG001
) -> tuple[int, ...]:
    """The order of the search results, best first: the baseline."""
    return tuple(range(len(documents)))


def canonical_order(
    documents: Sequence[str],
    root: CachedNode | None,  # noqa: ARG001
    scores: Sequence[float] = (),  # noqa: ARG001
) -> tuple[int, ...]:
    """The order of the keys, and of equal keys by rank: equal sets of documents share one path."""
    return tuple(sorted(range(len(documents)), key=documents.__getitem__))


@dataclass(frozen=True)
class CachedFirstOrder:
    """The order with the longest cached prefix, in tokens. The documents after it keep the order of the search.

    With a ``score_gap``, no document comes before one whose score is higher by more than this. So documents
    change places only if the search finds them about equally good. Without scores there is no such bound.

    The search follows cached paths only, depth first and better ranks first. So its work grows with what is cached of
    the k documents, and not with k!. It visits at most ``visit_budget`` nodes, each with at most k lookups.

    Within the budget the prefix is the longest of all allowed permutations; of equally long ones, the lexicographically
    first by rank. Six documents always fit the default budget. So does any number that is cached in all orders, as the
    first path with every document ends the search. Beyond the budget it is the longest prefix seen. That is no shorter
    than the one in retrieval order, which is visited first, if the budget exceeds k.
    """

    visit_budget: int = VISIT_BUDGET
    score_gap: float | None = None

    def __call__(
        self, documents: Sequence[str], root: CachedNode | None, scores: Sequence[float] = ()
    ) -> tuple[int, ...]:
        """The indices of the longest cached prefix, then the others by rank."""
        ranks = tuple(range(len(documents)))
        if root is None:
            return ranks
        longest = nothing = _Prefix((), ranks, 0, root)
        bounding = scores if self.score_gap is not None else ()
        for prefix in islice(_cached_prefixes(documents, nothing, bounding, self.score_gap or 0), self.visit_budget):
            # Not >=: prefixes come in the order of rank, so the first of equals wins.
            if prefix.tokens > longest.tokens:
                longest = prefix
            if not prefix.others:
                break
        return longest.indices + longest.others


def order_by_name(name: str, score_gap: float | None = None) -> OrderStrategy:
    """The strategy of a name. ``score_gap`` is that of cached-first order. Raises ConfigError for an unknown name."""
    strategies: dict[str, OrderStrategy] = {
        DocumentOrder.RETRIEVAL: retrieval_order,
        DocumentOrder.CANONICAL: canonical_order,
        DocumentOrder.CACHED_FIRST: CachedFirstOrder(score_gap=score_gap),
    }
    if name not in strategies:
        raise ConfigError(f"unknown document order {name!r}; there are {', '.join(strategies)}")
    return strategies[name]


class _Prefix(NamedTuple):
    """A cached path: the documents on it, the other documents, its tokens, and its last node."""

    indices: tuple[int, ...]
    others: tuple[int, ...]
    tokens: int
    end: CachedNode


def _cached_prefixes(
    documents: Sequence[str], prefix: _Prefix, scores: Sequence[float], gap: float
) -> Iterator[_Prefix]:
    """The prefix and all its cached extensions, in lexicographic order of their indices.

    With ``scores``, no document comes before one whose score is higher by more than the ``gap``.
    """
    yield prefix
    indices, others, tokens, end = prefix
    tried = set()
    for position, index in enumerate(others):
        if scores and scores[others[0]] - scores[index] > gap:
            # All that follow have lower scores.
            return
        key = documents[index]
        # Equal documents lead to the same node, so the best ranked one stands for them.
        if key in tried:
            continue
        tried.add(key)
        child = end.child(key)
        if child is not None:
            rest = others[:position] + others[position + 1 :]
            longer = _Prefix((*indices, index), rest, tokens + child.tokens, child)
            yield from _cached_prefixes(documents, longer, scores, gap)
