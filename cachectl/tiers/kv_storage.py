"""The memory that a controller shares out: its room, its pages, and its names."""

from typing import NamedTuple

from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.tier_manager import Capacities


class KvStorage(NamedTuple):
    """What instances at one location keep KV in: ``capacities`` in tokens, in whole pages of ``page_tokens`` tokens.

    - ``fingerprint`` names the KV's model and layout, and becomes part of every node's key.
    - ``location`` names the host memory and disk that the instances share. ``disk`` names that disk, if it has a name
      of its own.
    - Pages of host memory are handed out from ``first_page`` on, under stamps from ``first_stamp`` on.
    """

    capacities: Capacities
    page_tokens: int = 1
    fingerprint: str = ""
    location: str = ""
    disk: str = ""
    first_page: int = 0
    first_stamp: int = 1

    def arena(self) -> PageAllocator:
        """Hands out the pages of host memory."""
        pages = self.capacities.host // self.page_tokens
        return PageAllocator(pages, self.page_tokens, self.first_stamp, self.first_page)
