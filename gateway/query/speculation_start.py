"""Decides at which stages of a search a speculation is worth starting, learnt from past searches."""

import math
from collections import OrderedDict
from collections.abc import Hashable

_PARTS = 16
_PRIOR = 4.0
_FORGET = 0.98
_FADE = 0.99
_KINDS = 256
_WEIGHT_OF_LATEST = 0.2
_MAX_HELD_STAGES = 1000.0


class SpeculationStart:
    """Decides after each stage of a search whether to start a guess on its documents, or to wait for the next stage.

    RAGCache (Algorithm 2) always starts, because a wrong guess costs only the engine's current iteration. If an
    iteration takes as long as the rest of the search, there is time for one guess only, so it should be right.

    The value of a guess is the part of the search that it is expected to overlap:

    - If its documents are final: everything that is left of the search.
    - Otherwise, until the engine releases it: the share of its work that the final prompt can use. Then the value of
      the next guess is added. If the rest of the wrong work outlasts the search, that delay is subtracted.

    A guess is started if its value is at least that of waiting, and not negative.

    Statistics are kept per ``kind`` of search. For an unknown kind, the first documents are worth a guess. Knowledge
    of the engines fades with each search that adds nothing to it, so a kind that was given up is tried again.
    """

    def __init__(self) -> None:
        # The least recently searched kind first.
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._ending_ms = _Mean()
        self._use = _Mean()

    def record_search(self, kind: Hashable, final_at: float, stage_ms: float) -> None:
        """Learn from a search: its stages took ``stage_ms``; its documents were final at a share of it in (0, 1]."""
        self._kinds.setdefault(kind, _Kind()).learn(final_at, stage_ms)
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        self._ending_ms.value *= _FADE

    def record_ending(self, ms: float) -> None:
        """Learn how long an engine took to release a wrong guess."""
        self._ending_ms.take(ms)

    def record_use(self, share: float) -> None:
        """Learn which share of a wrong guess's work the final prompt could use."""
        self._use.take(share)

    def odds(self, kind: Hashable, at: float) -> float:
        """Probability that a search's documents are final by this share of its time."""
        return self._kinds.get(kind, _UNKNOWN_KIND).odds(at)

    def worth_starting(self, kind: Hashable, stage: int, of: int, since: int) -> bool:
        """Whether to start a guess after ``stage`` of ``of``, on documents unchanged since the stage ``since``.

        The documents are final with the probability that searches become final at ``since``, relative to the
        probability that they become final after ``stage``.
        """
        stage_ms = self._kinds.get(kind, _UNKNOWN_KIND).stage_ms.value
        if not stage_ms:
            return True
        odds = [self.odds(kind, now / of) for now in range(of + 1)]
        # In stages: a wrong guess is detected at the next stage at the earliest, then the engine has to release it.
        held = 1 + min(_MAX_HELD_STAGES, self._ending_ms.value / stage_ms)
        # By the stage at which a guess was wrong: the value of continuing from each later stage.
        after: dict[int, list[float]] = {}

        def value(now: int, right: float) -> float:
            """Value of a guess that starts at ``now`` and is right with this probability."""
            left = of - now
            overlapped = self._use.value * min(held, left)
            delayed = (1 - self._use.value) * max(0.0, held - left)
            return right * left + (1 - right) * (overlapped - delayed + after[now][min(of, now + math.ceil(held))])

        for wrong in range(of - 1, stage - 1, -1):
            after[wrong] = [0.0] * (of + 1)
            for now in range(of - 1, wrong, -1):
                right = (odds[now] - odds[wrong]) / (1 - odds[wrong])
                after[wrong][now] = max(after[wrong][now + 1], value(now, right))
        final_then = odds[since] - odds[since - 1]
        right = final_then / (final_then + 1 - odds[stage])
        final_by = (right + (1 - right) * (odds[now] - odds[stage]) / (1 - odds[stage]) for now in range(stage + 1, of))
        waiting = [value(now, by) for now, by in enumerate(final_by, start=stage + 1)]
        return value(stage, right) >= max([0.0, *waiting])


class _Mean:
    """A running mean: of all values at first, later weighted towards the latest."""

    def __init__(self) -> None:
        self.value = 0.0
        self._taken = 0

    def take(self, value: float) -> None:
        self._taken += 1
        self.value += max(_WEIGHT_OF_LATEST, 1 / self._taken) * (value - self.value)


class _Kind:
    """Statistics of one kind of search: when its documents become final, as a histogram, and its stage length."""

    def __init__(self) -> None:
        self.stage_ms = _Mean()
        self._parts = [0.0] * _PARTS

    def learn(self, final_at: float, stage_ms: float) -> None:
        self._parts = [weight * _FORGET for weight in self._parts]
        self._parts[_part(final_at)] += 1.0
        self.stage_ms.take(stage_ms)

    def odds(self, at: float) -> float:
        """Share of searches that are final by ``at``, with a uniform prior."""
        if at <= 0:
            return 0.0
        return (sum(self._parts[: _part(at) + 1]) + _PRIOR * at) / (sum(self._parts) + _PRIOR)


_UNKNOWN_KIND = _Kind()


def _part(at: float) -> int:
    return min(_PARTS - 1, max(0, math.ceil(at * _PARTS) - 1))
