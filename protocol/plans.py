"""What the controller and the generator say to each other about one query."""

from enum import StrEnum

import msgspec

from protocol.prompts import Prompt


class SpeculationDecision(StrEnum):
    """What to do about a query's provisional documents (RAGCache, Algorithm 2)."""

    START = "start"
    KEEP = "keep"
    DROP = "drop"
    WAIT = "wait"


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A prompt on final documents that asks for its turn. ``namespace`` separates tenants' KV and salts its keys."""

    query_id: str
    namespace: str
    prompt: Prompt


class PrefillPlan(msgspec.Struct, frozen=True):
    """The controller's word on one query: which ``instance`` prefills which prompt, and ``queued_ms`` spent waiting.

    A plan is a lease under its ``query_id``. It is released when it completes, fails or is cancelled, or when its
    generator is gone; releasing it again does nothing.
    """

    query_id: str
    instance: str
    namespace: str
    prompt: Prompt
    queued_ms: float = 0.0


class PlanOutcome(StrEnum):
    """How a plan ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CompletionReport(msgspec.Struct, frozen=True):
    """What became true of a plan: tokens of its prompt that were ``cached`` and ``computed``, and how long that took.

    All figures are 0 for a plan that ended before its first token.
    """

    query_id: str
    outcome: PlanOutcome
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    prefill_ms: float = 0.0


class ControllerStats(msgspec.Struct, frozen=True):
    """The controller's counters since its start, and its gauges now."""

    policy: str
    running: int
    queued: int
    admitted: int
    rejected: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    cached_tokens: int
    computed_tokens: int
