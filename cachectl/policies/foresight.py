"""FORESIGHT: keeps what is likeliest to be used again, by a model that learns from the traffic."""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import log
from random import Random
from typing import ClassVar

from cachectl.nodes.node import Copy, Node, NodeCache
from cachectl.policies.base import Arrival, ReplacementPolicy
from cachectl.policies.eviction_order import EvictionOrder
from cachectl.policies.lookahead import Lookahead
from cachectl.policies.reuse import Example, Histories, History, ReuseModel
from cachectl.policies.sampled_order import SampledOrder

HORIZON = 0.2
"""The horizon W, as a share of the time in which misses fill all tier caches once."""

_SHORTEST_HORIZON = 32.0
# Above every logit: what a waiting request needs will be used for certain.
_CERTAIN = 1e6
_NEVER_COMPUTED = 1e-6
_BENEFIT_OF_DOUBT = log(2)
_REPLACEABLE = log(0.3)
"""Composing a document out of another node's KV takes about 0.7 of the time that its own would spare."""
_TWINS = 8
"""How many of a document's nodes are looked at for another one: a popular document has thousands."""
_DRAWN = 1
_LEARNT_PATHS = 0.125
# Copies looked at for each one evicted. Fewer suffice if a slower cache is offered it, because that one looks again.
_DRAWS, _FINAL_DRAWS = 3, 12
_SLACK = 64


class Foresight(ReplacementPolicy):
    """Priority = logit P(path used within W requests) + ln AvgCost; what waiting requests need ranks above all else.

    RAGTree's own policy. docs/policies.md has the derivation and the figures. It combines:

    - PGDSF's cost: AvgCost, in seconds per computed token.
    - The queue's lookahead: a node that a waiting request needs is worth more than any other, the sooner the more.
    - An admission filter: a newcomer worth less than half of its victim is not kept. So documents that are used once do
      not flush the tree.
    - What composing spares: if another node has the same document's KV, this one is worth what it spares beyond that.
    - A history of each path that outlives its eviction. A logistic regression learns from it what reuse looks like in
      this traffic.

    Chances of reuse fall as time passes, so tier caches rank their leaves by samples. Random numbers are seeded: the
    same requests give the same decisions.
    """

    name: ClassVar[str] = "FORESIGHT"

    def __init__(self, lookahead: Lookahead, seed: int = 0) -> None:
        super().__init__(lookahead)
        self._random = Random(seed)  # noqa: S311
        self._histories = Histories(self._random)
        self._model = ReuseModel()
        self._waiting: deque[Example] = deque()
        self._tick = 0
        self._missed_tokens = 0
        self._horizon = 1000.0

    def begin(self, arrival: Arrival) -> None:
        """Count a use of every path of the request, and learn from the examples that predicted it."""
        self._tick = tick = arrival.tick
        self._missed_tokens += arrival.missed_tokens
        if tick > 50:
            self._horizon = max(_SHORTEST_HORIZON, HORIZON * arrival.capacity * tick / max(1, self._missed_tokens))
        random = self._random.random
        for depth, (key, document) in enumerate(zip(arrival.keys, arrival.documents, strict=True)):
            history = self._histories.of(key, depth, document.content)
            if history.example is not None:
                self._model.learn(history.example, used=tick - history.example.tick <= self._horizon)
                history.example = None
            history.use(tick)
            history.last_in_request = depth == len(arrival.keys) - 1
            if random() < _LEARNT_PATHS:
                self._expect(history)
        for _ in range(_DRAWN):
            drawn = self._histories.drawn()
            if drawn is not None:
                self._expect(drawn)
        # Twice the mean arrival rate: when the horizon shrinks, more examples are due than one request has time for.
        self._give_up_waiting(2 + len(arrival.keys) // 3)
        self._histories.forget_oldest()

    def entered(self, node: Node) -> None:
        """Keep the path's history while the tree has the node."""
        history = self._histories.of(node.key, len(node.path) - 1, node.content)
        if node.accesses and not history.uses:
            # A former controller counted these accesses.
            history.recall(node.accesses, node.last_access)
        self._histories.set_resident(history, True)
        node.history = history

    def left(self, node: Node) -> None:
        """Turn the path's history into a ghost."""
        assert isinstance(node.history, History)
        self._histories.set_resident(node.history, False)

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """What the node is worth at this moment. The same in every tier cache."""
        distance = self.lookahead.next_use(node.key)
        if distance is not None:
            return _CERTAIN - distance
        history = node.history or self._histories.get(node.key)
        if not isinstance(history, History):
            return -_CERTAIN
        worth = self._model.logit(history, self._tick) + log(node.cost_by_room or _NEVER_COMPUTED)
        return worth + _REPLACEABLE if _has_twin(node) else worth

    def current(self, copy: Copy) -> float:
        """What the node is worth at this moment."""
        return self.priority(copy.node, copy.cache)

    def admits(self, newcomer: float, victim: float) -> bool:
        """Whether the newcomer is worth at least half as much: without a history, it gets the benefit of the doubt."""
        return newcomer > victim - _BENEFIT_OF_DOUBT

    def order(self, final: bool) -> EvictionOrder:
        """A sampled order."""
        return SampledOrder(self.current, self._random, _FINAL_DRAWS if final else _DRAWS)

    def _expect(self, history: History) -> None:
        """Record what a path looks like now, to learn later whether it was used within the horizon."""
        if history.example is None:
            history.example = self._model.example(history, self._tick)
            self._waiting.append(history.example)

    def _give_up_waiting(self, most: int) -> None:
        """Learn that paths were not used from examples older than the horizon: at most ``most``, the oldest first."""
        while len(self._waiting) > _SLACK + 2 * len(self._histories):
            # Without misses the horizon grows without bound, so no example is ever due.
            self._oldest_waiting()
        for _ in range(most):
            if not self._waiting or self._waiting[0].tick >= self._tick - self._horizon:
                return
            example = self._oldest_waiting()
            if example is not None:
                self._model.learn(example, used=False)

    def _oldest_waiting(self) -> Example | None:
        """Take the oldest example out. None if its path was used or forgotten meanwhile."""
        example = self._waiting.popleft()
        if example.history.example is not example:
            return None
        example.history.example = None
        return example


def _has_twin(node: Node) -> bool:
    """Whether another node could donate this document's KV. Only the oldest ones are looked at."""
    if node.same_document is None:
        return False
    others = islice(node.same_document, _TWINS)
    return any(other is not node and other.copies and other.root is node.root for other in others)
