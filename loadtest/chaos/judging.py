"""What requests came to while processes were killed, and whether they may have."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from loadtest.chaos.victims import HOLDING_CONNECTIONS, Kill, Victim
from loadtest.reporting.records import Outcome, QueryRecord


class Fate(StrEnum):
    """How a request ended; each has exactly one."""

    COMPLETED = "completed"
    """By ``query.completed`` alone, and with a right answer."""
    FAILED = "failed"
    """By one ``query.failed`` or ``query.incomplete``."""
    REFUSED = "refused"
    """429 or 503 with Retry-After, before a stream began."""
    CUT = "cut"
    """Its connection broke, or was not to be had, when the very process that holds connections was killed.

    Serve's proxy says so with a bare 500 where a gateway dies before its first byte.
    """
    WRONG = "wrong"
    """Completed, but with another answer than an undisturbed stack gives."""
    BROKEN = "broken"
    """None of these: no terminal event or two, another status, a connection that broke for no reason, no end."""
    UNSENT = "unsent"
    """Too many streams were open, or the run was ended."""


ALLOWED = frozenset({Fate.COMPLETED, Fate.FAILED, Fate.REFUSED, Fate.CUT})
"""What a request may come to while the stack recovers; at any other time it has to complete."""
_DEFECT = "internal_error"


class Judged(NamedTuple):
    """A request's fate and why; ``kill`` is the number of the one whose recovery it fell into, None: of none."""

    record: QueryRecord
    fate: Fate
    reason: str
    kill: int | None


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """A kill in seconds of the load's begin, and how the requests ended that fell into its recovery."""

    victim: Victim
    pid: int
    signal: str
    at: float
    recovery_s: float | None
    fates: dict[Fate, int]
    reasons: dict[str, int]


class Judge:
    """Judges queries; ``wrong`` says what is wrong with an answer. All times are in seconds of the load's begin."""

    def __init__(self, kills: Sequence[Kill], wrong: Callable[[QueryRecord], str | None]) -> None:
        self._kills = kills
        self._wrong = wrong

    def judge(self, record: QueryRecord) -> Judged:
        """What became of a query."""
        disturbing = [number for number, kill in enumerate(self._kills) if _overlaps(record, kill)]
        fate, reason = self._fate(record, [self._kills[number] for number in disturbing])
        return Judged(record, fate, reason, disturbing[-1] if disturbing else None)

    def report(self, judged: Sequence[Judged]) -> list[KillReport]:
        """The kills, each with its requests."""
        return [
            KillReport(
                victim=kill.victim,
                pid=kill.pid,
                signal=kill.signal,
                at=kill.at,
                recovery_s=None if kill.recovered is None else kill.recovered - kill.at,
                fates=dict(Counter(each.fate for each in judged if each.kill == number)),
                reasons=dict(Counter(each.reason for each in judged if each.kill == number and each.reason)),
            )
            for number, kill in enumerate(self._kills)
        ]

    def _fate(self, record: QueryRecord, disturbing: Sequence[Kill]) -> tuple[Fate, str]:
        reason = f"{record.status or ''} {record.reason or ''}".strip()
        match record.outcome:
            case Outcome.ANSWERED:
                wrong = self._wrong(record)
                return (Fate.COMPLETED, "") if wrong is None else (Fate.WRONG, wrong)
            case Outcome.REFUSED:
                return Fate.REFUSED, reason
            case Outcome.FAILED if record.terminals == 1 and (record.reason or "").startswith("query."):
                return Fate.FAILED, str(record.reason)
            case Outcome.FAILED if _lost_connection(record) or _lost_gateway(record):
                held = any(kill.victim in HOLDING_CONNECTIONS for kill in disturbing)
                return Fate.CUT if held else Fate.BROKEN, reason
            case Outcome.FAILED:
                return Fate.BROKEN, reason
            case _:
                return Fate.UNSENT, str(record.outcome)


def problems_of(judged: Sequence[Judged], kills: Sequence[Kill]) -> list[str]:
    """What requests may not have come to."""
    found: Counter[str] = Counter()
    for each in judged:
        if each.fate not in ALLOWED:
            found[f"{each.fate}: {each.reason}"] += 1
        elif each.kill is None and each.fate is not Fate.COMPLETED:
            found[f"{each.fate} though nothing was being recovered from: {each.reason}"] += 1
        elif _DEFECT in each.reason:
            found[f"a defect of the stack: {each.reason}"] += 1
    problems = [f"{count} requests {text}" for text, count in found.most_common()]
    last = max((kill.recovered or 0.0 for kill in kills), default=0.0)
    if not any((each.record.sent or 0.0) > last for each in judged):
        problems.append("no request was sent after the last recovery")
    return problems


def problems_of_kills(kills: Sequence[Kill], victims: Sequence[Victim]) -> list[str]:
    """Which kinds were never killed, and from what the stack did not recover."""
    never = [victim for victim in victims if victim not in {kill.victim for kill in kills}]
    found = [f"never killed: {', '.join(never)}"] if never else []
    return found + [f"no recovery from the kill of {kill.victim}" for kill in kills if kill.recovered is None]


def _overlaps(record: QueryRecord, kill: Kill) -> bool:
    sent = record.at if record.sent is None else record.sent
    ended = sent if record.ended is None else record.ended
    return ended >= kill.at and (kill.recovered is None or sent <= kill.recovered)


def _lost_connection(record: QueryRecord) -> bool:
    """Whether it ended without a terminal event, or without a response at all, and not for want of time."""
    reason = record.reason or ""
    if "Timeout" in reason or reason.startswith("no end within"):
        return False
    return not record.status or (record.status == 200 and record.terminals == 0)


def _lost_gateway(record: QueryRecord) -> bool:
    """Whether Serve's proxy answered in the place of a gateway: a 500 of the gateway's own has a code."""
    return record.status == 500 and record.reason == "HTTP 500"
