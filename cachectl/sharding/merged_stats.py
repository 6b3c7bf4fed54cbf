"""Merge what several shards say about themselves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from protocol.cache import TierStats, TreeNode, TreeView
from protocol.plans import ControllerStats, InstanceLoad
from protocol.tiers import Tier

_SUMS = (
    "running",
    "queued",
    "admitted",
    "rejected",
    "completed",
    "failed",
    "cancelled",
    "expired",
    "cached_tokens",
    "computed_tokens",
    "composed_tokens",
    "planned_cached_tokens",
    "planned_tokens",
    "prepared_tokens",
    "generated_tokens",
    "peer_tokens",
    "peer_failures",
    "moves_given_up",
)


def merged_stats(parts: Sequence[ControllerStats]) -> ControllerStats:
    """Add up the counters, the tiers and the load of each instance."""
    planned_from: Counter[Tier] = sum((Counter(part.planned_from) for part in parts), Counter())
    return msgspec.structs.replace(
        parts[0],
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMS},
        largest_overtake=max(part.largest_overtake for part in parts),
        tiers=_merged_tiers([tier for part in parts for tier in part.tiers]),
        planned_from={tier: planned_from[tier] for tier in Tier},
        instances=_merged_loads([load for part in parts for load in part.instances]),
    )


def merged_tree(parts: Sequence[TreeView], plain: Callable[[str], str]) -> TreeView:
    """Put the trees beside each other, most used nodes first. ``plain`` takes the shard off a namespace."""
    namespaces: dict[str, list[TreeNode]] = defaultdict(list)
    for part in parts:
        for namespace, nodes in part.namespaces.items():
            namespaces[plain(namespace)] += nodes
    return TreeView(
        {name: tuple(sorted(nodes, key=_by_use)) for name, nodes in sorted(namespaces.items())},
        sum(part.nodes for part in parts),
        _merged_tiers([tier for part in parts for tier in part.tiers]),
    )


def _merged_tiers(tiers: Sequence[TierStats]) -> tuple[TierStats, ...]:
    by_place: dict[tuple[Tier, str], list[TierStats]] = defaultdict(list)
    for tier in tiers:
        by_place[tier.tier, tier.place].append(tier)
    return tuple(
        TierStats(
            tier,
            parts[0].instance,
            sum(part.capacity_tokens for part in parts),
            sum(part.used_tokens for part in parts),
            sum(part.pinned_tokens for part in parts),
            sum(part.nodes for part in parts),
            sum(part.evictions for part in parts),
            place,
        )
        for (tier, place), parts in by_place.items()
    )


def _merged_loads(loads: Sequence[InstanceLoad]) -> tuple[InstanceLoad, ...]:
    by_instance: dict[str, list[InstanceLoad]] = defaultdict(list)
    for load in loads:
        by_instance[load.instance].append(load)
    return tuple(
        InstanceLoad(
            instance,
            sum(part.running for part in parts),
            sum(part.queued for part in parts),
            all(part.retired for part in parts),
            any(part.kv_generator for part in parts),
            any(part.refused for part in parts),
        )
        for instance, parts in by_instance.items()
    )


def _by_use(node: TreeNode) -> tuple[float, str]:
    return -node.frequency, node.content
