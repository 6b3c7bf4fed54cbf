"""Replies of the cache administration: statistics, the tree, and results of jobs, pins and deletions."""

from typing import Literal

import msgspec

from gateway.background.cache_jobs import CacheJob, CacheJobStatus, Prefills
from gateway.readiness import Readiness
from gateway.stores.recent import DocumentName
from gateway.wire.errors import ErrorBody, error_body
from protocol.cache import TierStats, TreeView
from protocol.documents import JobStatus
from protocol.errors import RagtreeError
from protocol.plans import ControllerStats, InstanceLoad


class TierReply(TierStats, frozen=True, kw_only=True):
    """Usage of a tier in tokens and nodes, and in bytes if the engine reports the size of a token's KV."""

    used_bytes: int | None
    capacity_bytes: int | None

    @classmethod
    def of(cls, tier: TierStats, token_bytes: float | None) -> "TierReply":
        """Make the reply from a tier's statistics."""
        used, capacity = tier.used_tokens, tier.capacity_tokens
        return cls(
            **msgspec.structs.asdict(tier),
            used_bytes=None if token_bytes is None else round(used * token_bytes),
            capacity_bytes=None if token_bytes is None else round(capacity * token_bytes),
        )


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's policy, load and tiers.

    Since the controller's start, plans had ``planned_tokens`` before their questions. Of these, the plans loaded
    ``planned_cached_tokens`` instead of computing them.
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
        """Make the reply from the controller's statistics."""
        tiers = tuple(TierReply.of(tier, token_bytes) for tier in stats.tiers)
        return msgspec.convert(msgspec.structs.asdict(stats) | {"tiers": tiers}, cls)


class CacheTree(TreeView, frozen=True, kw_only=True):
    """The knowledge tree, or the most used nodes of a large one.

    ``documents`` maps namespace and content to the name of the document, if this gateway's queries found it recently.
    """

    object: Literal["cache.tree"] = "cache.tree"
    tiers: tuple[TierReply, ...]
    documents: dict[str, dict[str, DocumentName]]

    @classmethod
    def of(
        cls, view: TreeView, documents: dict[str, dict[str, DocumentName]], token_bytes: float | None
    ) -> "CacheTree":
        """Make the reply from the controller's view."""
        tiers = tuple(TierReply.of(tier, token_bytes) for tier in view.tiers)
        return cls(namespaces=view.namespaces, nodes=view.nodes, tiers=tiers, documents=documents)


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """Result of pinning or unpinning a document: the number of its ``chunks``, and of those that were ``held``."""

    object: Literal["cache.pin"] = "cache.pin"
    document_id: str
    pinned: bool
    chunks: int
    held: int


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a deletion: the number of dropped nodes."""

    object: Literal["cache.dropped"] = "cache.dropped"
    nodes: int


class WarmUpReply(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up job.

    Its queries make up ``sequences`` of documents, each replayed once: ``warmed`` are new in the tree, ``present`` were
    there already, ``failed`` could not be replayed.
    """

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
    def of(cls, job: CacheJob) -> "WarmUpReply":
        """Make the reply from a job."""
        done = job.sequences
        counts = {"sequences": done.total, "warmed": done.computed, "present": done.present, "failed": done.failed}
        return msgspec.convert(_fields(job) | counts, cls)


class PrecomputeReply(msgspec.Struct, frozen=True, kw_only=True):
    """A precomputation. Its counters are those of ``CacheJob``.

    The status ``no_room`` means that the tiers had no room for something, which was skipped.
    """

    job_id: str
    object: Literal["cache.precomputation"] = "cache.precomputation"
    status: CacheJobStatus
    queries: int
    resolved: int
    unresolved: int
    sequences: Prefills
    documents: int
    documents_done: int
    chunks: Prefills
    computed_tokens: int
    created_at: float
    updated_at: float
    last_error: ErrorBody | None

    @classmethod
    def of(cls, job: CacheJob) -> "PrecomputeReply":
        """Make the reply from a job."""
        return msgspec.convert(_fields(job), cls)


def _fields(job: CacheJob) -> dict[str, object]:
    error = job.last_error
    return msgspec.structs.asdict(job) | {"last_error": error and error_body(error)}


def token_bytes(readiness: Readiness) -> float | None:
    """Bytes of a token's KV. None if the engine keeps no KV outside its own cache, or is unavailable."""
    try:
        kv = readiness.engine().kv
    except RagtreeError:
        return None
    return None if kv is None else kv.page_bytes / kv.page_tokens
