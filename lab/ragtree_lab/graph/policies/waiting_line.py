"""Orders of waiting requests: whose turn is next."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from cachectl.branches import BranchTree
from cachectl.scheduling.queue import SLACK, WINDOW, CacheAwareQueue, Work
from ragtree_lab.graph.policies.forest import Forest

Cost = Callable[[int, int], float]


class WaitingLine(ABC):
    """Requests that wait for a turn on a ``tree``, by query. ``cost(cached, new)`` gives the seconds of a prefill."""

    def __init__(self, tree: BranchTree, cost: Cost) -> None:
        self._tree = tree
        self._cost = cost
        # In order of arrival.
        self._waiting: dict[str, Forest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, query_id: str, forest: Forest) -> None:
        """Add a request."""
        self._waiting[query_id] = forest

    def leave(self) -> tuple[str, Forest]:
        """Remove the request whose turn it is. At least one must wait."""
        query_id = self._next()
        return query_id, self._waiting.pop(query_id)

    @abstractmethod
    def _next(self) -> str:
        """The request whose turn it is."""


class FirstCome(WaitingLine):
    """FIFO: the oldest request is next."""

    def _next(self) -> str:
        return next(iter(self._waiting))


class LongestMatch(WaitingLine):
    """LPM: the request with the longest prefix match is next, the older of equals (SGLang, section 3).

    A match here is the tokens of all branches whose KV is kept. Nothing bounds a request's wait.
    """

    def _next(self) -> str:
        # `max` keeps the first of equals.
        return max(self._waiting, key=lambda query_id: self._tree.found(self._waiting[query_id].branches))


class LongestShared(WaitingLine):
    """LSP: the request that shares most tokens with the one served last is next, the older of equals.

    Longest shared prefix first (SGLang, Theorem 3.1): with one path a request, this is depth-first order over a batch's
    radix tree, which no order beats. SGLang itself approximates it by LPM. What requests with many paths share is
    summed over their branches, which is ours. Requests over one subgraph run one after another, whatever the cache
    holds. Nothing bounds a request's wait.
    """

    def __init__(self, tree: BranchTree, cost: Cost) -> None:
        super().__init__(tree, cost)
        self._last: Mapping[bytes, int] = {}

    def _next(self) -> str:
        last = self._last
        query_id = max(self._waiting, key=lambda each: sum(last.get(key, 0) for key in self._waiting[each].keys))
        self._last = self._waiting[query_id].tokens_by_key
        return query_id


class CacheAware(WaitingLine):
    """The shipped queue with its bounds on reordering: most cached tokens per computed one first."""

    def __init__(self, tree: BranchTree, cost: Cost) -> None:
        super().__init__(tree, cost)
        self._queue = CacheAwareQueue(max_queued=1 << 20, window=WINDOW, slack=SLACK)

    def enter(self, query_id: str, forest: Forest) -> None:
        """Add a request."""
        super().enter(query_id, forest)
        self._queue.push(query_id, self._work(forest))

    def _next(self) -> str:
        for query_id, forest in self._waiting.items():
            self._queue.reprioritise(query_id, self._work(forest))
        turn = self._queue.pop()
        assert turn is not None, "nothing waits"
        return turn.query_id

    def _work(self, forest: Forest) -> Work:
        cached = self._tree.found(forest.branches)
        computed = forest.tokens - cached + forest.question_tokens
        return Work(cached, computed, self._cost(cached, computed))


FIFO = "fifo"

ORDERS: Mapping[str, Callable[[BranchTree, Cost], WaitingLine]] = {
    FIFO: FirstCome,
    "lpm": LongestMatch,
    "lsp": LongestShared,
    "cache-aware": CacheAware,
}
"""The orders by name."""
