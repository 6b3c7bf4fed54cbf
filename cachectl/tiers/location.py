"""A location: host memory and a disk that the instances of one machine share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.tiers.tier_cache import TierCache
from protocol.errors import ConfigError
from protocol.tiers import Tier

if TYPE_CHECKING:
    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tiers.page_allocator import PageAllocator


class Location:
    """The tiers below the GPU of the instances at ``name``: budgets of ``host`` and ``disk`` tokens.

    ``arena`` hands out the pages of host memory, if they have numbers. Raises ConfigError if it has another size, or
    for negative budgets.
    """

    def __init__(
        self, name: str, host: int, disk: int, policy: ReplacementPolicy, arena: PageAllocator | None = None
    ) -> None:
        if min(host, disk) < 0:
            raise ConfigError(f"the tiers' capacities must not be negative: {host} and {disk}")
        if arena is not None and arena.capacity != host:
            raise ConfigError(f"host memory has pages for {arena.capacity} tokens, not for {host}")
        if not policy.keeps:
            host = disk = 0
        self.name = name
        self.disk = TierCache(Tier.DISK, disk, policy, location=name)
        self.host = TierCache(Tier.HOST, host, policy, location=name, slower=self.disk, allocator=arena)

    def cache(self, tier: Tier) -> TierCache:
        """The cache of a tier below the GPU."""
        return self.host if tier is Tier.HOST else self.disk
