"""Machines as a controller knows them."""

import msgspec

from cachectl.costs.device_profile import DeviceProfile
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.queue import SLACK
from cachectl.scheduling.scheduler import Scheduler
from cachectl.settings import ControllerSettings, Swap
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.knowledge_tree import FREQUENCY_WINDOW_S, KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from generator.settings import PeerSettings
from protocol.kv import NO_PEERS, Paging, Peers

PAGE_TOKENS = 16
TIMEOUT_S = PeerSettings().timeout_s
"""The longest that a load waits for other machines."""


class Machines(msgspec.Struct, frozen=True):
    """``count`` machines, each a location of its own with one instance.

    A machine keeps KV of ``gpu_tokens`` in its GPU, and of ``host_tokens`` in host memory and ``disk_tokens`` on disk.
    With ``link_bytes_per_s``, machines read each other's KV at this rate.
    """

    count: int
    gpu_tokens: int
    host_tokens: int
    disk_tokens: int = 0
    link_bytes_per_s: float | None = None

    def scheduler(
        self, device: DeviceProfile, settings: ControllerSettings, shard: ControllerShard = WHOLE
    ) -> Scheduler:
        """The scheduler and the tree of one ``shard`` of the controller: it knows all machines, with its part of each.

        Raises ConfigError for sizes that cannot be.
        """
        lookahead = Lookahead()
        settings = shard.settings(settings)
        pages = (tokens // PAGE_TOKENS for tokens in (self.gpu_tokens, self.host_tokens, self.disk_tokens))
        capacities = Capacities(*(shard.share(count) * PAGE_TOKENS for count in pages))
        tree = KnowledgeTree(
            create_policy(settings.policy, lookahead),
            KvStorage(capacities, Paging(PAGE_TOKENS), location=_location(0)),
            (),
            TreeCosts(
                device.prefill_seconds,
                device.load_seconds,
                device.kv_bytes_per_token / self.link_bytes_per_s if self.link_bytes_per_s else 0.0,
            ),
            FREQUENCY_WINDOW_S,
            arena=_arena(capacities),
            write_through=settings.swap is Swap.WRITE_THROUGH,
        )
        scheduler = Scheduler(
            tree,
            lookahead,
            settings.max_running,
            settings.max_queued,
            settings.reorder_window,
            slack=SLACK,
            rank=shard.rank,
        )
        for number in range(self.count):
            location = _location(number)
            # A known location keeps its tiers.
            tree.tiers.add_location(location, capacities.host, capacities.disk, _arena(capacities))
            peers = Peers((f"{location}:1",), TIMEOUT_S) if self.link_bytes_per_s else NO_PEERS
            scheduler.instances.add(f"instance-{number}", location, peers)
        return scheduler


def _arena(capacities: Capacities) -> PageAllocator:
    return PageAllocator(capacities.host // PAGE_TOKENS, PAGE_TOKENS)


def _location(number: int) -> str:
    return f"machine-{number}"
