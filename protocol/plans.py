"""What the controller and the generator say to each other about one query."""

from enum import StrEnum

import msgspec

from protocol.cache import TierStats
from protocol.kv import LostCopy, Move, Pages
from protocol.prompts import Prompt
from protocol.tiers import Tier


class SpeculationDecision(StrEnum):
    """What to do about a query's provisional documents (RAGCache, Algorithm 2).

    START a generation on them, ending the one on other documents; KEEP the one that runs; DROP it; or WAIT.
    """

    START = "start"
    KEEP = "keep"
    DROP = "drop"
    WAIT = "wait"


class DocumentOrder(StrEnum):
    """How a prompt's documents are ordered, which decides how much of its front is cached.

    RETRIEVAL: best first. CANONICAL: by their keys, so that equal sets make one prompt. CACHED_FIRST: those that make
    the longest cached front, then the others best first.
    """

    RETRIEVAL = "retrieval"
    CANONICAL = "canonical"
    CACHED_FIRST = "cached-first"


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A prompt on final documents, best first, that asks for its turn; its plan has them in the ``order`` asked for.

    ``namespace`` separates tenants' KV and salts its keys.

    The search that found the documents began at ``searched_at``, in seconds since the epoch; what was deleted since may
    be among them. ``avoid`` names instances that it is not to be given: those that it was lost on.
    """

    query_id: str
    namespace: str
    prompt: Prompt
    searched_at: float
    order: DocumentOrder = DocumentOrder.RETRIEVAL
    avoid: tuple[str, ...] = ()


class PlannedNode(msgspec.Struct, frozen=True):
    """A segment of a plan's prompt as a node of the knowledge tree, ``key`` in hexadecimal.

    Its KV is loaded from the tier ``source``, or computed if that is None, and kept in the tier ``kept``, if any.
    ``pages`` are those that it has in host memory, or is to have, where one of the two is that.
    """

    key: str
    tokens: int
    source: Tier | None
    kept: Tier | None
    pages: Pages | None = None


class PrefillPlan(msgspec.Struct, frozen=True):
    """The controller's word on one query: which ``instance`` prefills which prompt.

    Before that it waited for ``queued_ms``, and was ``overtaken`` so many times meanwhile.

    ``nodes`` are the prompt's segments in front of the question, in order. ``moves`` are carried out first: they make
    the room that the plan needs. ``ends`` names the speculative plans of the instance that give way to this one:
    whatever is left of them is ended first. ``spare`` are keys of what the instance's GPU can do without best, first
    first: should requests run short of blocks, these go.

    A ``speculative`` plan may be ended in the middle of its prefill. What it has computed by then of its nodes is kept
    as planned, and its other nodes are reported lost.

    ``boot`` names the life of the instance's engine that the plan was made for; another has nothing of what it names.
    What an ``unshared`` plan computes, nobody may find afterwards: one of its documents has been deleted.

    A plan is a lease under its ``query_id``. It is released when it completes, fails or is cancelled, or when its
    generator is gone, and never twice.
    """

    query_id: str
    instance: str
    namespace: str
    prompt: Prompt
    queued_ms: float = 0.0
    nodes: tuple[PlannedNode, ...] = ()
    moves: tuple[Move, ...] = ()
    ends: tuple[str, ...] = ()
    speculative: bool = False
    spare: tuple[str, ...] = ()
    boot: str = ""
    unshared: bool = False
    overtaken: int = 0


class PlanOutcome(StrEnum):
    """How a plan ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CompletionReport(msgspec.Struct, frozen=True):
    """What became true of a plan: tokens of its prompt that were ``cached`` and ``computed``, and how long that took.

    All figures are 0 for a plan that ended before its first token: nothing of it was kept then. Otherwise all that it
    planned is where it should be, but for ``lost``: copies of its nodes or of others that the instance found missing,
    could not write, or had to let go.
    """

    query_id: str
    outcome: PlanOutcome
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    prefill_ms: float = 0.0
    lost: tuple[LostCopy, ...] = ()


class InstanceLoad(msgspec.Struct, frozen=True):
    """An instance of the generator as its controller has it: queries that run there and that wait for it.

    One that is ``retired`` is given nothing more; it ends, or is gone.
    """

    instance: str
    running: int
    queued: int
    retired: bool


class ControllerStats(msgspec.Struct, frozen=True):
    """The controller's counters since its start, and its gauges now.

    ``planned_cached_tokens`` and ``planned_tokens`` are the prompts' tokens in front of the question as plans had them;
    ``cached_tokens`` and ``computed_tokens`` what reports said of whole prompts. ``planned_from`` splits
    ``planned_cached_tokens`` by tier. ``prepared_tokens`` were loaded or computed ahead of their requests' turns.
    """

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
    planned_cached_tokens: int = 0
    planned_tokens: int = 0
    largest_overtake: int = 0
    tiers: tuple[TierStats, ...] = ()
    planned_from: dict[Tier, int] = {}
    prepared_tokens: int = 0
    instances: tuple[InstanceLoad, ...] = ()
