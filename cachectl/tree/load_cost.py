"""What loading a copy costs an instance, wherever the copy lies."""

from __future__ import annotations

from collections.abc import Callable

from cachectl.nodes.node import Copy
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.tier_cache import TierCache
from protocol.tiers import Tier


class LoadCost:
    """Seconds to load copies.

    ``load_seconds(tokens, tier)`` are those from a tier of the instance's own location; None if loading is free.
    ``links`` has those of reads from other locations.
    """

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
