"""What instances at one location keep KV in: budgets, pages, and the tiers below their GPUs."""

from __future__ import annotations

from typing import NamedTuple

from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.tier_cache import TierCache
from protocol.errors import ConfigError
from protocol.kv import BY_TOKEN, Paging
from protocol.tiers import Tier


class Capacities(NamedTuple):
    """Budgets of the tiers in tokens; 0: there is no such tier.

    ``gpu`` is each instance's, ``host`` a location's, and ``disk`` that of a location's disk.
    """

    gpu: int
    host: int = 0
    disk: int = 0


class KvStorage(NamedTuple):
    """What instances at one location keep KV in: ``capacities`` in tokens, in whole pages of ``paging.page_tokens``.

    - ``fingerprint`` names the KV's model and layout, and becomes part of every node's key.
    - ``location`` names the host memory and disk that the instances share. ``disk`` names that disk, if it has its
      own name.
    - Pages of host memory are handed out from ``first_page`` on, under stamps from ``first_stamp`` on.
    """

    capacities: Capacities
    paging: Paging = BY_TOKEN
    fingerprint: str = ""
    location: str = ""
    disk: str = ""
    first_page: int = 0
    first_stamp: int = 1

    def arena(self) -> PageAllocator:
        """Hands out the pages of host memory."""
        pages = self.capacities.host // self.paging.page_tokens
        return PageAllocator(pages, self.paging.page_tokens, self.first_stamp, self.first_page)


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
