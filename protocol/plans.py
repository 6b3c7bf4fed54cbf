"""Messages between the controller and the generator about one query."""

from enum import StrEnum

import msgspec

from protocol.cache import TierStats
from protocol.dependency import DependencyTrees
from protocol.kv import KvRead, LostCopy, Move, Pages, PeerCopy
from protocol.prompts import Prompt
from protocol.retrieval import Revisions
from protocol.tiers import Tier


class SpeculationDecision(StrEnum):
    """What to do about a query's provisional documents (RAGCache, Algorithm 2).

    START a generation on them, ending one on other documents; KEEP the running one; DROP it; or WAIT.
    """

    START = "start"
    KEEP = "keep"
    DROP = "drop"
    WAIT = "wait"


class NotWarmed(StrEnum):
    """Why no plan brings documents into the tree.

    No instance is idle (BUSY), an instance has all of them (CACHED), one was deleted after it was found (OUTDATED), or
    something would have to leave an instance's tiers for them (NO_ROOM).
    """

    BUSY = "busy"
    CACHED = "cached"
    OUTDATED = "outdated"
    NO_ROOM = "no_room"


class DocumentOrder(StrEnum):
    """The order of a prompt's documents, which decides how much of its prefix is cached.

    - RETRIEVAL: best first.
    - CANONICAL: by key, so that equal sets give equal prompts.
    - CACHED_FIRST: the documents with the longest cached prefix, then the others best first.
    """

    RETRIEVAL = "retrieval"
    CANONICAL = "canonical"
    CACHED_FIRST = "cached-first"


class Reuse(StrEnum):
    """Which KV a prompt may use.

    - EXACT: only what was computed after the same documents.
    - COMPOSED: also what was computed elsewhere, with some of it computed again.
    - AUTO: as COMPOSED where that has passed its gate, else as EXACT.
    """

    EXACT = "exact"
    COMPOSED = "composed"
    AUTO = "auto"


class Fallback(StrEnum):
    """Why nothing of a prompt is composed, although that was asked for.

    - MODEL: the engine cannot compose the model's KV.
    - GATE: composing has not passed the model's gate.
    - NO_DONOR: no document after the exact prefix has been computed elsewhere.
    - SLOWER: computing was expected to be sooner.
    - DEVIATION: what was computed again was too far from what was donated, so the engine has computed the prompt.
    - FAILED: composing failed in the engine, which has computed the prompt instead.
    """

    MODEL = "model"
    GATE = "gate"
    NO_DONOR = "no_donor"
    SLOWER = "slower"
    DEVIATION = "deviation"
    FAILED = "failed"


class AdmissionRequest(msgspec.Struct, frozen=True):
    """A request for a plan: a prompt on final documents, best first. The plan has them in the requested ``order``.

    ``namespace`` separates tenants' KV and salts its keys. The stores had all documents at the revisions
    ``found_at``: some may have been deleted since. Without a revision, a document counts as found before any deletion
    of it. ``avoid`` names instances that the query must not get, because it was lost on them before. ``scores`` are
    those of the search, one for each document and possibly more, in falling order; empty if they are unknown. ``reuse``
    and ``recompute_share`` are the controller's own if they are None.
    """

    query_id: str
    namespace: str
    prompt: Prompt
    found_at: Revisions
    order: DocumentOrder = DocumentOrder.RETRIEVAL
    avoid: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    reuse: Reuse | None = None
    recompute_share: float | None = None


class Donor(msgspec.Struct, frozen=True):
    """A node of the knowledge tree whose document also stands elsewhere in a prompt; ``key`` is hexadecimal.

    Its first token has the position ``prefix_tokens`` in its own path. Its KV is read from the tier ``source``;
    ``pages`` are its pages in host memory, if that is the tier. If there is a ``peer``, it is read from that instead.
    """

    key: str
    source: Tier
    prefix_tokens: int
    pages: Pages | None = None
    peer: PeerCopy | None = None


class Recompute(msgspec.Struct, frozen=True):
    """Which donated tokens are computed again: those that the selector ``method`` chooses, at most this ``share``.

    If their KV deviates from the donated by more than ``bound``, the whole prompt is computed.
    """

    method: str
    share: float
    bound: float | None = None


class PlannedNode(msgspec.Struct, frozen=True):
    """A segment of a plan's prompt as a node of the knowledge tree; ``key`` is hexadecimal.

    Its KV is loaded from the tier ``source``. If that is None, it is loaded from the ``peer``, composed out of the
    ``donor``'s, or computed. It is kept in the tier ``kept``, if any. ``pages`` are its pages in host memory, if either
    tier is that.
    """

    key: str
    tokens: int
    source: Tier | None
    kept: Tier | None
    pages: Pages | None = None
    donor: Donor | None = None
    peer: PeerCopy | None = None

    @property
    def loaded_from(self) -> Tier | None:
        """The tier, here or at a peer, from which the node is loaded, if it is."""
        return self.peer.tier if self.peer is not None else self.source

    @property
    def saved_to(self) -> Tier | None:
        """The tier below the GPU into which the node is written once it is computed or has come from a peer."""
        return self.kept if self.source is None and self.kept is not Tier.GPU else None


class PrefillPlan(msgspec.Struct, frozen=True):
    """The controller's plan for one query: which ``instance`` prefills which prompt.

    The query waited ``queued_ms`` and was ``overtaken`` that many times.

    - ``nodes`` are the prompt's segments before the question, in order.
    - ``moves`` are carried out first: they make the room that the plan needs.
    - ``ends`` names the instance's speculative plans that give way to this one; they are ended first.
    - ``spare`` lists keys of nodes that the instance may evict from its GPU if requests run short of blocks, least
      useful first.
    - ``speculative``: the plan may be ended in the middle of its prefill. Nodes computed by then are kept as planned,
      the others are reported lost.
    - ``boot`` names the run of the engine that the plan is made for. Another run has none of the KV that it names.
    - ``unshared``: no later query may find what the plan computes, because one of its documents has been deleted.
    - ``recompute``: how donated nodes are composed; None if no node has a donor. No later query finds what a plan
      composes.
    - ``first``: the plan of a prefill before this one, with its own id, if this one composes and some
      documents have no donors. It computes them exactly, after what is loaded, so that they are kept and donate. It is
      part of this plan: what it computes counts as computed.
    - ``trees``: where the prompt has dependency trees; None if it has none. No later query finds their KV in the tree.
    - ``fallback``: why nothing is composed; None if something is, or if nobody asked for it, or if all is cached.
    - ``tree_fallback``: why the prompt's facts are told in full; None if they are in ``trees``, or if it has none.

    A plan is a lease under its ``query_id``. It is released exactly once: when the plan completes, fails or is
    cancelled, or when its generator is gone.
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
    recompute: Recompute | None = None
    first: "PrefillPlan | None" = None
    fallback: Fallback | None = None
    trees: DependencyTrees | None = None
    tree_fallback: Fallback | None = None


class PlanOutcome(StrEnum):
    """How a plan ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CompletionReport(msgspec.Struct, frozen=True):
    """Result of a plan: the cached, composed and computed tokens of its prompt, and the time they took.

    All figures are 0 if the plan ended before its first token: then none of its KV was kept. Otherwise all its KV is
    kept as planned, except ``lost``: copies, of its nodes or of others, that the instance found missing, could not
    write, or had to drop. ``unwritten`` are the copies in shared tiers that the plan was to write and that are not
    there; None if some may still be written. ``reads`` are those of the plan's ``PrefillResult``.
    """

    query_id: str
    outcome: PlanOutcome
    cached_tokens: int = 0
    computed_tokens: int = 0
    composed_tokens: int = 0
    completion_tokens: int = 0
    prefill_ms: float = 0.0
    lost: tuple[LostCopy, ...] = ()
    unwritten: tuple[LostCopy, ...] | None = None
    reads: tuple[KvRead, ...] = ()


class InstanceLoad(msgspec.Struct, frozen=True):
    """Load of one generator instance, as the controller counts it: running queries, and queries queued for it.

    A ``retired`` instance gets no new queries; it is draining or gone. A ``kv_generator`` gets none either: it prefills
    documents of queries that wait for others. A ``refused`` one has KV of another model or layout than all others, and
    gets nothing; the controller's log says why.
    """

    instance: str
    running: int
    queued: int
    retired: bool
    kv_generator: bool = False
    refused: bool = False


class ControllerStats(msgspec.Struct, frozen=True):
    """The controller's counters since its start, and its gauges.

    ``planned_cached_tokens`` and ``planned_tokens`` count prompt tokens before the question, as planned;
    ``cached_tokens``, ``composed_tokens`` and ``computed_tokens`` count whole prompts, as reported. ``planned_from``
    splits ``planned_cached_tokens`` by tier. ``prepared_tokens`` were loaded or computed while requests were queued;
    KV generators computed ``generated_tokens`` of them.
    ``peer_tokens`` were read from other locations, and ``peer_failures`` counts the reads that failed.
    ``moves_given_up`` were lost with three instances, one after another.
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
    composed_tokens: int = 0
    planned_cached_tokens: int = 0
    planned_tokens: int = 0
    largest_overtake: int = 0
    tiers: tuple[TierStats, ...] = ()
    planned_from: dict[Tier, int] = {}
    prepared_tokens: int = 0
    generated_tokens: int = 0
    peer_tokens: int = 0
    peer_failures: int = 0
    moves_given_up: int = 0
    instances: tuple[InstanceLoad, ...] = ()
