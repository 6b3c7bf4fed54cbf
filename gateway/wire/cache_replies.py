"""The KV cache as replies spell it: what its tiers hold, its tree, and what became of an administrator's orders."""

from typing import Literal

import msgspec

from gateway.background.warmup import WarmUp
from gateway.readiness import Readiness
from gateway.stores.recent_documents import DocumentName, RecentDocuments
from gateway.wire.errors import ErrorBody, error_body
from protocol.cache import TierStats, TreeView
from protocol.documents import JobStatus
from protocol.errors import RagtreeError
from protocol.plans import ControllerStats, InstanceLoad


class TierReply(TierStats, frozen=True, kw_only=True):
    """A tier now, in tokens, nodes and, where the engine says how many bytes a token takes, in bytes."""

    used_bytes: int | None
    capacity_bytes: int | None

    @classmethod
    def of(cls, tier: TierStats, token_bytes: float | None) -> "TierReply":
        """The tier as a reply."""
        return cls(
            **msgspec.structs.asdict(tier),
            used_bytes=bytes_of(tier.used_tokens, token_bytes),
            capacity_bytes=bytes_of(tier.capacity_tokens, token_bytes),
        )


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller decides by, what it has under way, and its tiers.

    ``planned_cached_tokens`` of ``planned_tokens``, those of prompts in front of the question, were to be loaded rather
    than computed, since the controller's start.
    """

    object: Literal["cache.stats"] = "cache.stats"
    policy: str
    running: int
    queued: int
    planned_cached_tokens: int
    planned_tokens: int
    instances: tuple[InstanceLoad, ...]
    tiers: tuple[TierReply, ...]

    @classmethod
    def of(cls, stats: ControllerStats, token_bytes: float | None) -> "CacheStats":
        """The controller's counters as a reply."""
        return cls(
            policy=stats.policy,
            running=stats.running,
            queued=stats.queued,
            planned_cached_tokens=stats.planned_cached_tokens,
            planned_tokens=stats.planned_tokens,
            instances=stats.instances,
            tiers=tuple(TierReply.of(tier, token_bytes) for tier in stats.tiers),
        )


class CacheTree(TreeView, frozen=True, kw_only=True):
    """The knowledge tree, or the most used nodes of a large one.

    ``documents`` names, by namespace and content, those that this gateway's queries have found lately.
    """

    object: Literal["cache.tree"] = "cache.tree"
    documents: dict[str, dict[str, DocumentName]]

    @classmethod
    def of(cls, view: TreeView, recent: RecentDocuments) -> "CacheTree":
        """The tree as a reply."""
        return cls(namespaces=view.namespaces, nodes=view.nodes, tiers=view.tiers, documents=recent.names_in(view))


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt for a pin given or taken back: of the document's ``chunks``, how many it holds for."""

    object: Literal["cache.pin"] = "cache.pin"
    document_id: str
    pinned: bool
    chunks: int
    held: int


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt for KV that is gone: how many nodes of the tree."""

    object: Literal["cache.dropped"] = "cache.dropped"
    nodes: int


class WarmUpReply(msgspec.Struct, frozen=True, kw_only=True):
    """A warming up as ``WarmUp`` counts it."""

    job_id: str
    object: Literal["cache.warm_up"] = "cache.warm_up"
    status: JobStatus
    queries: int
    resolved: int
    unresolved: int
    sequences: int
    warmed: int
    present: int
    failed: int
    computed_tokens: int
    created_at: float
    updated_at: float
    last_error: ErrorBody | None

    @classmethod
    def of(cls, job: WarmUp) -> "WarmUpReply":
        """The job as a reply."""
        error = job.last_error
        return cls(**{**msgspec.structs.asdict(job), "last_error": error and error_body(error)})


def token_bytes(readiness: Readiness) -> float | None:
    """Bytes that a token's KV takes; None where the engine keeps none outside of its own cache, or cannot be asked."""
    try:
        kv = readiness.engine().kv
    except RagtreeError:
        return None
    return None if kv is None else kv.page_bytes / kv.page_tokens


def bytes_of(tokens: int, token_bytes: float | None) -> int | None:
    """The size of so many tokens' KV, if that is known."""
    return None if token_bytes is None else round(tokens * token_bytes)
