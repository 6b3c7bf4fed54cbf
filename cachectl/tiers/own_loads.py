"""Own loads: what instances take to load KV from the tiers of their own location, learnt from what they report."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from protocol.tiers import Tier

_KEPT = 32
"""The latest loads of an instance from a tier, by which it is judged."""
_FEWEST = 3
"""Of fewer loads, a slow one says nothing."""
_APART = 128
"""Lengths in tokens that are closer than this tell nothing about what each token takes."""


class _Excess:
    """What the latest loads from a tier took besides copying their bytes: ``constant_s + token_s * tokens``.

    Fitted by medians, the token's over the slopes between pairs of loads (Sen 1968, doi:10.1080/01621459.1968.10480934,
    after Theil 1950). So a stall counts no more than any other load.
    """

    def __init__(self) -> None:
        self._loads: list[tuple[int, float]] = []
        self.constant_s = 0.0
        self.token_s = 0.0

    def measured(self, tokens: int, seconds: float) -> None:
        """Take a load into account."""
        self._loads = [*self._loads[1 - _KEPT :], (tokens, seconds)]
        if len(self._loads) < _FEWEST:
            return
        slopes = [
            (seconds - other_s) / (tokens - other)
            for index, (tokens, seconds) in enumerate(self._loads)
            for other, other_s in self._loads[:index]
            if abs(tokens - other) >= _APART
        ]
        slope = median(slopes) if slopes else 0.0
        # Loads may be faster than the tier's rate, by each token: then only the constant stays.
        self.constant_s = max(0.0, median([seconds - slope * tokens for tokens, seconds in self._loads]))
        self.token_s = max(0.0, slope)


class OwnLoads:
    """Loads from the tiers of an instance's own location take a constant each, and seconds for their tokens.

    ``copy_s(tokens, tier)`` is what the bytes take at the tier's rate; None: loads are free. All else is learnt, by
    instance and tier: what a load waits for steps of the engine, and how far it misses the rate.
    """

    def __init__(self, copy_s: Callable[[int, Tier], float] | None = None) -> None:
        self._copy_s = copy_s
        self._excess: dict[tuple[str, Tier], _Excess] = {}

    def seconds(self, instance: str, tokens: int, tier: Tier) -> float:
        """Seconds for ``tokens``, besides the load's ``constant_s``."""
        if self._copy_s is None:
            return 0.0
        excess = self._excess.get((instance, tier))
        seconds = self._copy_s(tokens, tier)
        return seconds if excess is None else seconds + tokens * excess.token_s

    def constant_s(self, instance: str, tier: Tier) -> float:
        """Seconds that a load takes, however short it is; 0 until loads are measured."""
        excess = self._excess.get((instance, tier))
        return 0.0 if excess is None else excess.constant_s

    def measured(self, instance: str, tier: Tier, tokens: int, seconds: float) -> None:
        """Learn from a load that a request has waited for."""
        if self._copy_s is not None:
            self._excess.setdefault((instance, tier), _Excess()).measured(tokens, seconds - self._copy_s(tokens, tier))

    def forget(self, instance: str, tier: Tier) -> None:
        """Forget what was measured: if it rules out all loads, none would ever show that it has changed."""
        self._excess.pop((instance, tier), None)
