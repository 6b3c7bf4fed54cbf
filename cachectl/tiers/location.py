"""A location: the host memory of one machine, and the disk that its instances use."""

from __future__ import annotations

from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.tier_cache import TierCache
from protocol.errors import ConfigError
from protocol.tiers import Tier


class Location:
    """The tiers below the GPU of the instances at ``name``: a budget of ``host`` tokens, and a ``disk``.

    Other locations may have the same disk: a folder that several machines mount, or an object store. ``arena`` hands
    out the pages of host memory, if they have numbers. Raises ConfigError if it has another size.
    """

    def __init__(
        self, name: str, host: int, disk: TierCache, policy: ReplacementPolicy, arena: PageAllocator | None = None
    ) -> None:
        if arena is not None and arena.capacity != host:
            raise ConfigError(f"host memory has pages for {arena.capacity} tokens, not for {host}")
        self.name = name
        self.disk = disk
        capacity = host if policy.keeps else 0
        self.host = TierCache(Tier.HOST, capacity, policy, location=name, slower=disk, allocator=arena)

    @property
    def places(self) -> tuple[str, str]:
        """The names of what its tiers belong to: of this location, and of its disk."""
        return self.name, self.disk.location

    def cache(self, tier: Tier) -> TierCache:
        """The cache of a tier below the GPU."""
        return self.host if tier is Tier.HOST else self.disk
