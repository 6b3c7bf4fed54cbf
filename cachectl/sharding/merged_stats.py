"""Merge what several shards say about themselves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec

from protocol.cache import TierStats, TreeNode, TreeView
from protocol.plans import ControllerStats, InstanceLoad
from protocol.tiers import Tier

_NOT_SUMS = {"policy", "largest_overtake", "tiers", "planned_from", "instances"}
_SUMS = [field for field in ControllerStats.__struct_fields__ if field not in _NOT_SUMS]
_TIER_SUMS = ("capacity_tokens", "used_tokens", "pinned_tokens", "nodes", "evictions")


def merged_stats(parts: Sequence[ControllerStats]) -> ControllerStats:
    """Add up the counters, the tiers and the load of each instance."""
    planned_from: Counter[Tier] = sum((Counter(part.planned_from) for part in parts), Counter())
    return msgspec.structs.replace(
        parts[0],
        **_sums(parts, _SUMS),
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
    return tuple(msgspec.structs.replace(parts[0], **_sums(parts, _TIER_SUMS)) for parts in by_place.values())


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


def _sums(parts: Sequence[object], fields: Sequence[str]) -> dict[str, int]:
    return {field: sum(getattr(part, field) for part in parts) for field in fields}
