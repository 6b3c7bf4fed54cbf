"""When a search's documents are worth beginning on: how early searches settle, learnt from those that have ended."""

import math
from collections import OrderedDict
from collections.abc import Hashable

_PARTS = 16
_PRIOR = 4.0
_FORGET = 0.98
_FADE = 0.99
_KINDS = 256
_WEIGHT_OF_LATEST = 0.2
_FOR_EVER = 1000.0


class Settling:
    """Tells at each stage of a search whether to begin on its documents or to wait for the next.

    RAGCache, Algorithm 2, begins at once: a guess that turns out wrong costs nothing there but the iteration in hand.
    Where an iteration takes as long as the rest of the search, the first guess is the only one, and it had better be
    right. So a guess is worth the part of the search that it is expected to overlap: all that is left, if the documents
    are final; otherwise, until the engine has let go of it, the share of its work that other prompts have found of use,
    and then what the next guess is worth; less the rest of that work, where it outlasts the search. It is begun where
    that is no less than what waiting is worth, and than nothing.

    Searches are told apart by ``kind``. Of those of an unknown kind the first documents are begun on. What is known of
    engines fades while nothing is learnt of them, so that what was given up is tried again.
    """

    def __init__(self) -> None:
        # The least recently searched kind first.
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._ending_ms = _Mean()
        self._of_use = _Mean()

    def searched(self, kind: Hashable, settled: float, stage_ms: float) -> None:
        """Hear of a search in stages of this length: at which share of it, in (0, 1], its documents were final."""
        self._kinds.setdefault(kind, _Kind()).learn(settled, stage_ms)
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        self._ending_ms.value *= _FADE

    def ended(self, ms: float) -> None:
        """Hear how long an engine took to let go of a guess that was wrong."""
        self._ending_ms.take(ms)

    def used(self, share: float) -> None:
        """Hear which share of a wrong guess's work the final prompt had use for."""
        self._of_use.take(share)

    def odds(self, kind: Hashable, at: float) -> float:
        """The probability that a search has its final documents by this share of its time."""
        return self._kinds.get(kind, _NOTHING_KNOWN).odds(at)

    def worth_beginning(self, kind: Hashable, stage: int, of: int, since: int) -> bool:
        """Whether to begin after this ``stage`` of so many on documents that have been the best ``since`` an earlier.

        All is counted in stages. What is found at a stage is final with the probability that searches settle there,
        against that of settling later than now.
        """
        stage_ms = self._kinds.get(kind, _NOTHING_KNOWN).stage_ms.value
        if not stage_ms:
            return True
        odds = [self.odds(kind, now / of) for now in range(of + 1)]
        # A wrong guess is found out by the next stage at the earliest.
        held = 1 + min(_FOR_EVER, self._ending_ms.value / stage_ms)
        # By the stage at which a guess was wrong: what going on is worth from each later stage on.
        after: dict[int, list[float]] = {}

        def begun(now: int, right: float) -> float:
            left = of - now
            overlapped = self._of_use.value * min(held, left)
            delayed = (1 - self._of_use.value) * max(0.0, held - left)
            return right * left + (1 - right) * (overlapped - delayed + after[now][min(of, now + math.ceil(held))])

        for wrong in range(of - 1, stage - 1, -1):
            after[wrong] = [0.0] * (of + 1)
            for now in range(of - 1, wrong, -1):
                right = (odds[now] - odds[wrong]) / (1 - odds[wrong])
                after[wrong][now] = max(after[wrong][now + 1], begun(now, right))
        settled_then = odds[since] - odds[since - 1]
        right = settled_then / (settled_then + 1 - odds[stage])
        settles_by = (
            right + (1 - right) * (odds[now] - odds[stage]) / (1 - odds[stage]) for now in range(stage + 1, of)
        )
        waited = [begun(now, by) for now, by in enumerate(settles_by, start=stage + 1)]
        return begun(stage, right) >= max([0.0, *waited])


class _Mean:
    """A running mean: of all at first, and then mostly of the latest."""

    def __init__(self) -> None:
        self.value = 0.0
        self._taken = 0

    def take(self, value: float) -> None:
        self._taken += 1
        self.value += max(_WEIGHT_OF_LATEST, 1 / self._taken) * (value - self.value)


class _Kind:
    """Searches of a kind: the weight of those that settled in each part of their time, and the length of a stage."""

    def __init__(self) -> None:
        self.stage_ms = _Mean()
        self._parts = [0.0] * _PARTS

    def learn(self, settled: float, stage_ms: float) -> None:
        self._parts = [weight * _FORGET for weight in self._parts]
        self._parts[_part(settled)] += 1.0
        self.stage_ms.take(stage_ms)

    def odds(self, at: float) -> float:
        """Nothing known, a search settles as likely at any time as at another."""
        if at <= 0:
            return 0.0
        return (sum(self._parts[: _part(at) + 1]) + _PRIOR * at) / (sum(self._parts) + _PRIOR)


_NOTHING_KNOWN = _Kind()


def _part(at: float) -> int:
    return min(_PARTS - 1, max(0, math.ceil(at * _PARTS) - 1))
