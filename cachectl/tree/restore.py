"""Restoring a tree from what instances and disks report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cachectl.nodes.keys import path_keys
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.snapshot import NodeRecord
from protocol.cache import RestoreResult
from protocol.errors import InvalidRequest
from protocol.kv import HeldNode, ResidencyReport
from protocol.tiers import Tier


def restore(
    tree: KnowledgeTree,
    reports: Sequence[ResidencyReport],
    records: Mapping[str, NodeRecord] | None = None,
    location: str = "",
) -> RestoreResult:
    """Register every copy that is reported from a location, if it fits and is supported, and have the others dropped.

    Faster tiers and upper nodes go first, as they support the others. Copies that the tree knows stay as they are.
    ``records`` come from a former controller's snapshot, by node key in hexadecimal. From now on, pages of host memory
    are handed out above every reported stamp. Raises UnknownInstance and InvalidRequest for a report that cannot be
    true; then no copy is registered.
    """
    below = tree.tiers.locations[location]
    if below.host.allocator is not None:
        below.host.allocator.see(max((report.highest_stamp for report in reports), default=0))
    for report in reports:
        if report.tier is not Tier.GPU and report.instance is not None:
            raise InvalidRequest(f"the {report.tier} tier is shared, it is not {report.instance}'s", param="instance")
        for held in report.nodes:
            _check(held)
    reported = [(_cache_of(tree, report, location), report) for report in reports]
    restored = refused = 0
    for cache, report in sorted(reported, key=lambda each: each[0].rank):
        for held in sorted(report.nodes, key=lambda held: len(held.path)):
            record = records.get(path_keys(held.namespace, held.path)[-1].hex()) if records else None
            if tree.insert(held, cache, record):
                restored += 1
            else:
                refused += 1
                tree.refuse(held, cache)
    if below.host.allocator is not None:
        below.host.allocator.settle()
    return RestoreResult(restored, refused)


def refuse(tree: KnowledgeTree, reports: Sequence[ResidencyReport], location: str = "") -> None:
    """Have every copy dropped that is reported from a location. Raises UnknownInstance."""
    for report in reports:
        cache = _cache_of(tree, report, location)
        for held in report.nodes:
            tree.refuse(held, cache)


def _cache_of(tree: KnowledgeTree, report: ResidencyReport, location: str) -> TierCache:
    if report.tier is Tier.GPU:
        return tree.tiers.gpu(report.instance or "")
    return tree.tiers.locations[location].cache(report.tier)


def _check(held: HeldNode) -> None:
    if not held.path:
        raise InvalidRequest("a held node's path has at least one document", param="path")
    if held.tokens <= 0:
        raise InvalidRequest(f"a held node has at least one token, not {held.tokens}", param="tokens")
