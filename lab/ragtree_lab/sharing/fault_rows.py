"""What queries met while a peer was at fault, and whether that is as it should be."""

from collections.abc import Sequence
from statistics import median

import msgspec

from protocol.errors import Unavailable
from ragtree_lab.exactness import compare
from ragtree_lab.sharing.open_loop import Arrived

SERVES_AGAIN_S = 120.0
"""The longest that a peer may take to serve again, once it is there again."""
_READ = 0.5
"""The least share of the queries that must read at the peer before a fault: else the fault meets too few of them."""


class Phase(msgspec.Struct, frozen=True):
    """Queries that arrived in one phase: before a fault, during it, or after it.

    ``wrong`` answers have other tokens than the computed ones, or are missing; ``largest_logprob_difference`` is over
    the tokens up to the first one that differs. ``read_share`` is the share of the queries whose KV was read at the
    peer, and ``failures`` counts the reads that failed. ``late`` queries had their first token more than one timeout
    later than the same query when it was computed, or had none. ``largest_delay_ms`` is the largest difference of those
    that had one. Times to first token count from when a query was due.
    """

    queries: int
    wrong: int
    largest_logprob_difference: float
    read_share: float
    failures: int
    late: int
    largest_delay_ms: float
    ttft_p50_ms: float
    ttft_max_ms: float


class FaultRow(msgspec.Struct, frozen=True):
    """One fault. ``computed_ttft_ms`` are the times of the same queries, at the same rate, when nothing is read.

    ``served_again_s`` is the time from the peer's return to the first token behind KV that was read there; None if
    there was none. ``misses`` say what is not as it should be; ``passed`` is whether there are none.
    """

    fault: str
    computed_ttft_p50_ms: float
    computed_ttft_max_ms: float
    before: Phase
    during: Phase
    after: Phase
    wrong: int
    late: int
    failures: int
    served_again_s: float | None
    passed: bool
    misses: list[str]


def phase(came: Sequence[Arrived | None], computed: Sequence[Arrived], failures: int, timeout_s: float) -> Phase:
    """Summarise a phase, whose queries are those of ``computed``, in order, and again from the first one on.

    Raises Unavailable if none was answered.
    """
    pairs = [(computed[number % len(computed)], arrived) for number, arrived in enumerate(came) if arrived is not None]
    if not pairs:
        raise Unavailable("no query was answered")
    missing = len(came) - len(pairs)
    delays = [arrived.ttft_ms - alone.ttft_ms for alone, arrived in pairs]
    times = [arrived.ttft_ms for _, arrived in pairs]
    difference = compare([alone.answer for alone, _ in pairs], [arrived.answer for _, arrived in pairs])
    return Phase(
        queries=len(came),
        wrong=missing + difference.mismatches,
        largest_logprob_difference=difference.largest_logprob_difference,
        read_share=sum(was_read(arrived) for _, arrived in pairs) / len(came),
        failures=failures,
        late=missing + sum(delay > timeout_s * 1000 for delay in delays),
        largest_delay_ms=max(delays),
        ttft_p50_ms=median(times),
        ttft_max_ms=max(times),
    )


def row(
    fault: str,
    computed: Sequence[Arrived],
    before: Phase,
    during: Phase,
    after: Phase,
    served_again_s: float | None,
    timeout_s: float,
) -> FaultRow:
    """The row of a fault, with its misses."""
    alone = [arrived.ttft_ms for arrived in computed]
    wrong = before.wrong + during.wrong + after.wrong
    late = during.late + after.late
    misses = []
    if before.read_share < _READ:
        misses.append(f"before the fault, only {before.read_share:.0%} of the queries read at the peer")
    if median(alone) > timeout_s * 1000:
        misses.append("computing alone does not keep up with the rate, so delays say little")
    if before.late:
        misses.append(f"{before.late} queries were as late before the fault: something else disturbs the measurement")
    if wrong:
        misses.append(f"{wrong} answers are wrong or missing")
    if late:
        misses.append(f"{late} queries took more than {timeout_s:g} s longer than computing")
    if not during.failures and fault != "slow":
        misses.append("no failure was counted")
    if served_again_s is None:
        misses.append(f"the peer did not serve again within {SERVES_AGAIN_S:g} s")
    return FaultRow(
        fault=fault,
        computed_ttft_p50_ms=median(alone),
        computed_ttft_max_ms=max(alone),
        before=before,
        during=during,
        after=after,
        wrong=wrong,
        late=late,
        failures=during.failures + after.failures,
        served_again_s=served_again_s,
        passed=not misses,
        misses=misses,
    )


def was_read(arrived: Arrived) -> bool:
    """Whether a query had KV that was read at the peer."""
    return any(read.tokens and not read.failed for read in arrived.answer.prefill.peer_reads)
