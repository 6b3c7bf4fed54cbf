"""FORESIGHT: what is kept is what is likeliest to be used again, by a model that learns from the traffic."""

from __future__ import annotations

from collections import deque
from math import log
from random import Random
from typing import TYPE_CHECKING, ClassVar

from cachectl.policies.base import Arrival, ReplacementPolicy
from cachectl.policies.eviction_order import EvictionOrder, SampledOrder
from cachectl.policies.reuse.history import Histories, History
from cachectl.policies.reuse.model import Example, ReuseModel

if TYPE_CHECKING:
    from cachectl.policies.lookahead import Lookahead
    from cachectl.tree.node import Copy, Node, NodeCache

HORIZON = 0.2
"""W, "soon", as a share of the time in which misses fill all caches once."""

_SHORTEST_HORIZON = 32.0
# Above every logit: what a waiting request needs is certain.
_CERTAIN = 1e6
_NEVER_COMPUTED = 1e-6
_BENEFIT_OF_DOUBT = log(2)
_DRAWN = 1
_LEARNT_PATHS = 0.125
# Copies looked at for each that is evicted. The slower cache that is offered it looks again, so fewer will do before.
_DRAWS, _FINAL_DRAWS = 3, 12
_SLACK = 64


class Foresight(ReplacementPolicy):
    """Priority = logit P(path used within W requests) + ln AvgCost; what waiting requests need stands above all else.

    It joins four things. PGDSF's cost: AvgCost, seconds per non-cached token. The queue's lookahead: a node that a
    waiting request needs is worth more than any other, the sooner the more. An admission filter: a newcomer that is
    worth less than half of its victim is not kept, so documents that are used once do not flush the tree. And a history
    of each path that outlives its eviction, from which a logistic regression learns what reuse looks like in this
    traffic (RAGTree's own; docs/policies.md has the derivation and the figures). Chances of reuse fall as time passes,
    so caches rank their leaves by samples. Random numbers are seeded: the same requests give the same decisions.
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
        """Count a use of every path of the request, and learn from what was expected of them."""
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
        # Twice as many as come on the mean: when the horizon shrinks, more are due at once than a request has time for.
        self._give_up_waiting(2 + len(arrival.keys) // 3)
        self._histories.forget_oldest()

    def entered(self, node: Node) -> None:
        """Keep the history of a path as long as the tree has it."""
        history = self._histories.of(node.key, node.depth - 1, node.content)
        if node.accesses and not history.uses:
            # Another controller counted them, and is no more.
            history.recall(node.accesses, node.last_access)
        self._histories.set_resident(history, True)
        node.history = history

    def left(self, node: Node) -> None:
        """Let the history of a path become a ghost."""
        assert isinstance(node.history, History)
        self._histories.set_resident(node.history, False)

    def priority(self, node: Node, cache: NodeCache) -> float:  # noqa: ARG002
        """What the node is worth at this moment, in every cache alike."""
        return self._worth(node)

    def current(self, copy: Copy) -> float:
        """What the node is worth at this moment."""
        return self._worth(copy.node)

    def admits(self, newcomer: float, victim: float) -> bool:
        """Whether the newcomer is worth at least about half as much: nothing is known of it yet, and it may gain."""
        return newcomer > victim - _BENEFIT_OF_DOUBT

    def order(self, final: bool) -> EvictionOrder:
        """An order by samples."""
        return SampledOrder(self.current, self._random, _FINAL_DRAWS if final else _DRAWS)

    def _worth(self, node: Node) -> float:
        distance = self.lookahead.next_use(node.key)
        if distance is not None:
            return _CERTAIN - distance
        history = node.history or self._histories.get(node.key)
        if not isinstance(history, History):
            return -_CERTAIN
        return self._model.logit(history, self._tick) + log(node.average_cost or _NEVER_COMPUTED)

    def _expect(self, history: History) -> None:
        """Remember what a path looks like, to learn from whether it is used within the horizon."""
        if history.example is None:
            history.example = self._model.example(history, self._tick)
            self._waiting.append(history.example)

    def _give_up_waiting(self, most: int) -> None:
        """Learn from examples whose time is up that their paths were not used: so many at once, the oldest first."""
        while len(self._waiting) > _SLACK + 2 * len(self._histories):
            # Where nothing is missed the horizon grows without end: nothing is due, and what is used is learnt from.
            self._oldest_waiting()
        for _ in range(most):
            if not self._waiting or self._waiting[0].tick >= self._tick - self._horizon:
                return
            example = self._oldest_waiting()
            if example is not None:
                self._model.learn(example, used=False)

    def _oldest_waiting(self) -> Example | None:
        """Take the oldest example out; None if its path was used, or forgotten, meanwhile."""
        example = self._waiting.popleft()
        if example.history.example is not example:
            return None
        example.history.example = None
        return example
