"""Dynamic speculative pipelining as a decision: generate on provisional documents, or wait for better ones.

RAGCache, section 5.3, Algorithm 2. A search that goes in stages often has its final documents long before it ends, and
a generation started on them then overlaps with the stages that only confirm them. What the answers ask of the caller:

    START   end what the query's speculation runs on, if anything; start one on these documents
    KEEP    let the running one go on; if the documents are final, it is confirmed and its tokens may leave
    DROP    end the running one and start none
    WAIT    nothing runs, and nothing starts

An ended generation finishes its iteration first. START is always speculative: final documents that are not confirmed
are no guess, so they get DROP or WAIT, and the query then goes through admission like any other.
"""

from collections.abc import Sequence

from protocol.errors import InvalidRequest
from protocol.plans import SpeculationDecision


def decide(
    candidates: Sequence[str],
    running: Sequence[str] | None,
    pool_size: int,
    max_prefill_bs: int,
    final: bool,
) -> SpeculationDecision:
    """The decision on a query's ``candidates`` after one stage, given what its speculation is ``running`` on, if any.

    Both are content keys in prompt order: the same documents in another order are another prompt. No candidates are
    nothing found so far, which is never speculated on.

    ``pool_size`` counts the other requests that wait for prefill or are in it. The query's own speculation is not
    among them, for START ends it and so frees its place. Below ``max_prefill_bs`` requests (the engine's largest useful
    prefill batch) a speculation fills room that would stay empty; at the bound it would delay the others. Under the
    paper's assumptions this rule minimises the expected time to first token (Theorem 5.1). A bound of 0 switches
    speculation off: nothing starts, and what still runs is dropped.

    Raises InvalidRequest for a negative ``pool_size`` or ``max_prefill_bs``.
    """
    for name, count in (("pool_size", pool_size), ("max_prefill_bs", max_prefill_bs)):
        if count < 0:
            raise InvalidRequest(f"{name} is {count}, but a count cannot be negative", param=name)
    # Sequences of different types are never equal, even with equal items.
    if max_prefill_bs > 0 and running is not None and tuple(running) == tuple(candidates):
        return SpeculationDecision.KEEP
    if candidates and not final and pool_size < max_prefill_bs:
        return SpeculationDecision.START
    return SpeculationDecision.WAIT if running is None else SpeculationDecision.DROP
