"""When a search's documents are worth beginning on: how early searches settle, learnt from those that have ended."""

import math
from collections import OrderedDict
from collections.abc import Hashable

_PARTS = 16
_PRIOR = 4.0
_FORGET = 0.98
_KINDS = 256
_WEIGHT_OF_LATEST = 0.2


class Settling:
    """Tells at each stage of a search whether to begin on its documents or to wait for the next.

    RAGCache, Algorithm 2, begins at once: a guess that turns out wrong costs nothing there but the iteration in hand.
    Where an iteration takes as long as the rest of the search, the first guess is the only one, and it had better be
    right. So a guess is worth the part of the search that it is expected to overlap: what is left, if the documents are
    final ones, and otherwise what the next guess is worth when the engine is free again. It is begun where that is no
    less than what waiting for a later stage is worth.

    Searches are told apart by ``kind``. Nothing known, they settle as likely at any time as at another, and engines are
    free at once.
    """

    def __init__(self) -> None:
        # By kind, the least recently ended first: the weight of searches that settled in each part of their time.
        self._settled: OrderedDict[Hashable, list[float]] = OrderedDict()
        self._ending_ms = 0.0

    def settled(self, kind: Hashable, at: float) -> None:
        """Hear at which share of its time, in (0, 1], a search had its final documents for good."""
        parts = self._settled.setdefault(kind, [0.0] * _PARTS)
        parts[:] = [weight * _FORGET for weight in parts]
        parts[_part(at)] += 1.0
        self._settled.move_to_end(kind)
        if len(self._settled) > _KINDS:
            self._settled.popitem(last=False)

    def ended(self, ms: float) -> None:
        """Hear how long an engine took to let go of a guess that was wrong."""
        self._ending_ms += _WEIGHT_OF_LATEST * (ms - self._ending_ms)

    def odds(self, kind: Hashable, at: float) -> float:
        """The probability that a search has its final documents by this share of its time."""
        parts = self._settled.get(kind, [])
        seen = sum(parts[: _part(at) + 1])
        return (seen + _PRIOR * at) / (sum(parts) + _PRIOR)

    def worth_beginning(self, kind: Hashable, stage: int, of: int, elapsed_ms: float) -> bool:
        """Whether to begin after this ``stage`` of so many, ``elapsed_ms`` into the search."""
        stage_ms = elapsed_ms / stage
        # A wrong guess is found out by the next stage at the earliest.
        lost = 1 + (math.ceil(self._ending_ms / stage_ms) if stage_ms else 0)
        # Expected stages that are overlapped, by the stage from which on they are counted.
        best = [0.0] * (of + 1)
        begun = 0.0
        for now in range(of - 1, stage - 1, -1):
            right = self.odds(kind, now / of)
            begun = right * (of - now) + (1 - right) * best[min(of, now + lost)]
            best[now] = max(begun, best[now + 1])
        return begun >= best[stage]


def _part(at: float) -> int:
    return min(_PARTS - 1, max(0, math.ceil(at * _PARTS) - 1))
