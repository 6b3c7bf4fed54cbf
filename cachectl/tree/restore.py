"""Rebuilding a lost controller's tree from what instances and disk indexes say they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.tree.node import path_keys
from protocol.cache import RestoreResult
from protocol.errors import InvalidRequest
from protocol.kv import HeldNode, ResidencyReport
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachectl.tree.knowledge_tree import KnowledgeTree
    from cachectl.tree.snapshot import NodeRecord


def restore(
    tree: KnowledgeTree, reports: Sequence[ResidencyReport], recalled: Mapping[str, NodeRecord] | None = None
) -> RestoreResult:
    """Take note of every copy that has room and a parent to stand on; order the others to be dropped.

    Faster tiers and upper nodes first, for the others rest on them. What the tree knows already is left as it is.
    ``recalled`` is what is known of nodes, by their keys in hexadecimal, from the tree of a controller that is no more.
    Raises UnknownInstance and InvalidRequest for a report that cannot be true; then nothing has changed.
    """
    for report in reports:
        tree.tiers.cache(report.tier, report.instance)
        if report.tier is not Tier.GPU and report.instance is not None:
            raise InvalidRequest(f"the {report.tier} tier is shared, it is not {report.instance}'s", param="instance")
        for held in report.nodes:
            _check(held)
    speed = {tier: rank for rank, tier in enumerate(Tier)}
    restored = refused = 0
    for report in sorted(reports, key=lambda report: speed[report.tier]):
        for held in sorted(report.nodes, key=lambda held: len(held.path)):
            if tree.insert(held, report.tier, report.instance, _recalled(held, recalled)):
                restored += 1
            else:
                refused += 1
                tree.refuse(held, report.tier, report.instance)
    return RestoreResult(restored, refused)


def _recalled(held: HeldNode, recalled: Mapping[str, NodeRecord] | None) -> NodeRecord | None:
    return recalled.get(path_keys(held.namespace, held.path)[-1].hex()) if recalled else None


def _check(held: HeldNode) -> None:
    if not held.path:
        raise InvalidRequest("a node that is held has a path of one document at least", param="path")
    if held.tokens <= 0:
        raise InvalidRequest(f"a node that is held has at least one token, not {held.tokens}", param="tokens")
