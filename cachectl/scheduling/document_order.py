"""The order in which a query's documents stand in its prompt.

A prefix cache knows a document only behind the documents before it, so the order decides how much is reused. Every
strategy permutes the documents and drops none; none looks at their text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol

from protocol.errors import ConfigError
from protocol.plans import DocumentOrder

# Six documents have 1237 ordered selections that lack at least one of them; a path that lacks none ends the search.
VISIT_BUDGET = 1250


class CachedNode(Protocol):
    """What a strategy sees of the knowledge tree: a cached document in one path, or the root before them all."""

    @property
    def tokens(self) -> int:
        """Tokens of this document alone, the same wherever it stands; the root's are not looked at."""

    def child(self, key: str) -> "CachedNode | None":
        """The cached node of the document ``key`` right behind this one, None where there is none."""


class OrderStrategy(Protocol):
    """A rule that orders documents. Pure: the same documents over the same tree give the same order."""

    name: ClassVar[DocumentOrder]

    def __call__(self, documents: Sequence[str], root: CachedNode | None) -> tuple[int, ...]:
        """The places in ``documents`` (content keys, best first), in prompt order: a permutation of their indices.

        A key that stands there twice is two documents. ``root`` is None where nothing is cached.
        """


class RetrievalOrder:
    """The order of the search, best first: the baseline."""

    name: ClassVar[DocumentOrder] = DocumentOrder.RETRIEVAL

    def __call__(self, documents: Sequence[str], root: CachedNode | None) -> tuple[int, ...]:  # noqa: ARG002
        """The indices as they are."""
        return tuple(range(len(documents)))


class CanonicalOrder:
    """The order of the keys: equal sets of documents make one path, however they were ranked."""

    name: ClassVar[DocumentOrder] = DocumentOrder.CANONICAL

    def __call__(self, documents: Sequence[str], root: CachedNode | None) -> tuple[int, ...]:  # noqa: ARG002
        """The indices by key; equal keys by rank."""
        return tuple(sorted(range(len(documents)), key=documents.__getitem__))


@dataclass(frozen=True)
class CachedFirstOrder:
    """The order whose cached prefix has the most tokens; documents behind that prefix keep the order of the search.

    Only cached paths are followed, depth first and better ranks first, so the work grows with what is cached of these
    documents and not with k!. At most ``visit_budget`` nodes are visited, each with at most k lookups.

    Within the budget the prefix is the longest of all permutations, and of equally long ones the lexicographically
    first by rank. Up to six documents are always within the default budget, and so are any that are cached in all their
    orders, since the first path that holds every document ends the search. Beyond the budget it is the longest prefix
    seen: no shorter than the one in retrieval order, which is visited first, if the budget exceeds k.
    """

    name: ClassVar[DocumentOrder] = DocumentOrder.CACHED_FIRST
    visit_budget: int = VISIT_BUDGET

    def __call__(self, documents: Sequence[str], root: CachedNode | None) -> tuple[int, ...]:
        """The indices of the longest cached prefix, then the others by rank."""
        ranks = tuple(range(len(documents)))
        if root is None:
            return ranks
        longest = nothing = _Prefix((), ranks, 0, root)
        for prefix in islice(_cached_prefixes(documents, nothing), self.visit_budget):
            # Not >=: prefixes come in the order of rank, so the first of equals is the one to keep.
            if prefix.tokens > longest.tokens:
                longest = prefix
            if not prefix.others:
                break
        return longest.indices + longest.others


_STRATEGIES: dict[str, OrderStrategy] = {
    strategy.name: strategy for strategy in (RetrievalOrder(), CanonicalOrder(), CachedFirstOrder())
}


def order_by_name(name: str) -> OrderStrategy:
    """The strategy of a declared name. Raises ConfigError for a name that nobody declared."""
    try:
        return _STRATEGIES[name]
    except KeyError:
        raise ConfigError(f"unknown document order {name!r}; there are {', '.join(_STRATEGIES)}") from None


class _Prefix(NamedTuple):
    """A cached path below the root: the documents on it, those that are not, its tokens, and the node where it ends."""

    indices: tuple[int, ...]
    others: tuple[int, ...]
    tokens: int
    end: CachedNode


def _cached_prefixes(documents: Sequence[str], prefix: _Prefix) -> Iterator[_Prefix]:
    """The prefix and all that it can be lengthened to, in lexicographic order of their indices."""
    yield prefix
    indices, others, tokens, end = prefix
    tried = set()
    for place, index in enumerate(others):
        key = documents[index]
        # Of equal documents the best ranked goes first; the others would lead to the same node.
        if key in tried:
            continue
        tried.add(key)
        child = end.child(key)
        if child is not None:
            rest = others[:place] + others[place + 1 :]
            yield from _cached_prefixes(documents, _Prefix((*indices, index), rest, tokens + child.tokens, child))
