"""Replies on the gateway itself: whether it is alive and ready, and what it did lately."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    """The gateway is alive."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """Queries can be served. ``degraded`` names the stores that cannot be reached."""

    status: Literal["ok"] = "ok"
    degraded: tuple[str, ...] = ()


class ActivityBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Queries that ended, and requests that were refused, in one bucket of time. It began ``ago_s`` seconds ago.

    ``first_tokens`` counts the queries that had a first token; without any, the percentiles are null.
    ``cached_tokens`` is the cached part of ``prompt_tokens``.
    """

    ago_s: float
    queries: int
    first_tokens: int
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    rejected: int


class ActivityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last ``window_s`` seconds of this gateway, oldest first. Empty buckets are left out."""

    object: Literal["gateway.activity"] = "gateway.activity"
    bucket_s: float
    window_s: float
    buckets: tuple[ActivityBucket, ...]
