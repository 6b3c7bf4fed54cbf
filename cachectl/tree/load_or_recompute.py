"""Load or recompute: how much of what a request finds is worth bringing to the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachectl.tree.tier_cache import Copy


class Loading(NamedTuple):
    """What a plan loads of the copies that it found: the first ``documents``, of ``tokens``, in ``seconds``."""

    documents: int
    tokens: int
    seconds: float


class LoadOrRecompute:
    """Chooses the length of a prefix to load with which prompts have their first token soonest.

    ``cost(cached, new)`` gives the seconds of a prefill, ``load_seconds(tokens, tier)`` those until the KV of so many
    tokens has come from a tier; None where loading is free.
    """

    def __init__(
        self, cost: Callable[[int, int], float], load_seconds: Callable[[int, Tier], float] | None = None
    ) -> None:
        self._cost = cost
        self._load_seconds = load_seconds

    def choose(self, found: Sequence[Copy], prompt_tokens: int) -> Loading:
        """How much of ``found`` to load for a prompt of so many tokens, its question included.

        What lies in the GPU costs nothing; of equals the longer prefix.
        """
        tokens = 0
        if self._load_seconds is None or not found or found[-1].cache.tier is Tier.GPU:
            for copy in found:
                tokens += copy.node.tokens
            return Loading(len(found), tokens, 0.0)
        seconds = 0.0
        best: Loading | None = None
        best_s = 0.0
        for index, copy in enumerate(found):
            tier = copy.cache.tier
            if tier is not Tier.GPU:
                if best is None:
                    # Faster tiers come first on a path, so this is all that the GPU has of it.
                    best, best_s = Loading(index, tokens, 0.0), self._cost(tokens, prompt_tokens - tokens)
                # Whole pages are moved.
                seconds += self._load_seconds(copy.node.room, tier)
            tokens += copy.node.tokens
            if best is not None:
                in_all_s = seconds + self._cost(tokens, prompt_tokens - tokens)
                if in_all_s <= best_s:
                    best, best_s = Loading(index + 1, tokens, seconds), in_all_s
        assert best is not None
        return best
