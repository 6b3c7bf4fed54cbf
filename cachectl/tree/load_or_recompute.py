"""What loading a copy costs an instance, wherever the copy lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachectl.nodes.node import Copy
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.tier_cache import TierCache
from protocol.tiers import Tier


class TreeCosts(NamedTuple):
    """What an instance takes, in seconds.

    ``prefill(cached, new)`` are those of a prefill, and ``load(tokens, tier)`` those of a load from a tier of its own
    location; None: loads are free. Until it is measured, reading a token's KV at another location takes
    ``peer_token_s``. Moving it to another position takes ``move_s``.
    """

    prefill: Callable[[int, int], float]
    load: Callable[[int, Tier], float] | None = None
    peer_token_s: float = 0.0
    move_s: float = 0.0


class LoadCost:
    """Seconds to load copies: ``load_seconds`` from an instance's own location, ``links`` has those from others."""

    def __init__(self, load_seconds: Callable[[int, Tier], float] | None, links: PeerLinks) -> None:
        self._load_seconds = load_seconds
        self._links = links

    @property
    def free(self) -> bool:
        """Whether loading takes no time."""
        return self._load_seconds is None

    def seconds(self, copy: Copy, gpu: TierCache) -> float:
        """Seconds to load a copy for the instance with this GPU. Loads move whole pages."""
        if self._load_seconds is None:
            return 0.0
        cache, tokens = copy.cache, copy.node.room
        seconds = self._load_seconds(tokens, cache.tier)
        if gpu.reaches(cache):
            return seconds
        slower_s = seconds - self._load_seconds(tokens, Tier.HOST)
        return self._links.seconds(gpu.owner, cache.location, tokens, cache.tier, slower_s)


class Loading(NamedTuple):
    """What a plan loads of the copies that it finds: the first ``documents``, of ``tokens``, in ``seconds``."""

    documents: int
    tokens: int
    seconds: float


class LoadOrRecompute:
    """Chooses the prefix to load that has the first token soonest.

    ``cost(cached, new)`` gives the seconds of a prefill, and ``loads`` those of a load.
    """

    def __init__(self, cost: Callable[[int, int], float], loads: LoadCost) -> None:
        self._cost = cost
        self._loads = loads

    def choose(self, found: Sequence[Copy], prompt_tokens: int, gpu: TierCache) -> Loading:
        """How much of ``found`` to load into a GPU for a prompt of ``prompt_tokens`` tokens, its question included.

        What lies in the GPU costs nothing. Of equally fast prefixes the longest wins.
        """
        tokens = 0
        if self._loads.free or not found or found[-1].cache.tier is Tier.GPU:
            for copy in found:
                tokens += copy.node.tokens
            return Loading(len(found), tokens, 0.0)
        seconds = 0.0
        best: Loading | None = None
        best_s = 0.0
        for index, copy in enumerate(found):
            if copy.cache.tier is not Tier.GPU:
                if best is None:
                    # Faster tiers come first on a path, so the GPU has nothing behind this document.
                    best, best_s = Loading(index, tokens, 0.0), self._cost(tokens, prompt_tokens - tokens)
                seconds += self._loads.seconds(copy, gpu)
            tokens += copy.node.tokens
            if best is not None:
                total_s = seconds + self._cost(tokens, prompt_tokens - tokens)
                if total_s <= best_s:
                    best, best_s = Loading(index + 1, tokens, seconds), total_s
        assert best is not None
        return best
