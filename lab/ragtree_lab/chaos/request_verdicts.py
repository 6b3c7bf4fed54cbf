"""How requests ended while processes were killed, and whether that is allowed."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from loadtest.reporting.request_records import Outcome, QueryRecord
from ragtree_lab.chaos.victims import HOLDING_CONNECTIONS, Kill, Victim


class Fate(StrEnum):
    """How a request ended. Each request has exactly one fate."""

    COMPLETED = "completed"
    """It ended with a single ``query.completed`` and an expected answer."""
    FAILED = "failed"
    """It ended with a single ``query.failed`` or ``query.incomplete``."""
    REFUSED = "refused"
    """429 or 503 with Retry-After, before a stream started."""
    CUT = "cut"
    """Its connection broke or was refused when the process that holds connections was killed.

    Serve's proxy answers with a bare 500 if a gateway dies before its first byte.
    """
    WRONG = "wrong"
    """Completed with an answer that an undisturbed stack does not give."""
    BROKEN = "broken"
    """Anything else: no terminal event or two, another status, an unexplained broken connection, a timeout."""
    UNSENT = "unsent"
    """Too many streams were open, or the run ended."""


ALLOWED = frozenset({Fate.COMPLETED, Fate.FAILED, Fate.REFUSED, Fate.CUT})
"""The allowed fates during a recovery. At any other time a request must complete."""
_DEFECT = "internal_error"


class Judged(NamedTuple):
    """The fate of a request and its reason. ``kill`` is the number of the kill whose recovery it overlapped, if any."""

    record: QueryRecord
    fate: Fate
    reason: str
    kill: int | None


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """A kill, and how the requests during its recovery ended. Times are in seconds since the start of the load."""

    victim: Victim
    pid: int
    signal: str
    at: float
    recovery_s: float | None
    fates: dict[Fate, int]
    reasons: dict[str, int]


class Judge:
    """Judges queries. ``wrong`` returns what is wrong with an answer, or None.

    Times are in seconds since the start of the load.
    """

    def __init__(self, kills: Sequence[Kill], wrong: Callable[[QueryRecord], str | None]) -> None:
        self._kills = kills
        self._wrong = wrong

    def judge(self, record: QueryRecord) -> Judged:
        """Return the fate of a query."""
        overlapping = [number for number, kill in enumerate(self._kills) if _overlaps(record, kill)]
        fate, reason = self._fate(record, [self._kills[number] for number in overlapping])
        return Judged(record, fate, reason, overlapping[-1] if overlapping else None)

    def report(self, judged: Sequence[Judged]) -> list[KillReport]:
        """Return the kills, each with the fates of its requests."""
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

    def _fate(self, record: QueryRecord, overlapping: Sequence[Kill]) -> tuple[Fate, str]:
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
                held = any(kill.victim in HOLDING_CONNECTIONS for kill in overlapping)
                return Fate.CUT if held else Fate.BROKEN, reason
            case Outcome.FAILED:
                return Fate.BROKEN, reason
            case _:
                return Fate.UNSENT, str(record.outcome)


def request_problems(judged: Sequence[Judged], kills: Sequence[Kill]) -> list[str]:
    """Return the fates that are not allowed."""
    found: Counter[str] = Counter()
    for each in judged:
        if each.fate not in ALLOWED:
            found[f"{each.fate}: {each.reason}"] += 1
        elif each.kill is None and each.fate is not Fate.COMPLETED:
            found[f"{each.fate} outside of any recovery: {each.reason}"] += 1
        elif _DEFECT in each.reason:
            found[f"a defect of the stack: {each.reason}"] += 1
    problems = [f"{count} requests {text}" for text, count in found.most_common()]
    last = max((kill.confirmed or 0.0 for kill in kills), default=0.0)
    if not any((each.record.sent or 0.0) > last for each in judged):
        problems.append("no request was sent after the last recovery")
    return problems


def kill_problems(kills: Sequence[Kill], victims: Sequence[Victim]) -> list[str]:
    """Return the kinds that were never killed, and the kills without a recovery."""
    never = [victim for victim in victims if victim not in {kill.victim for kill in kills}]
    found = [f"never killed: {', '.join(never)}"] if never else []
    return found + [f"no recovery from the kill of {kill.victim}" for kill in kills if kill.recovered is None]


def _overlaps(record: QueryRecord, kill: Kill) -> bool:
    sent = record.at if record.sent is None else record.sent
    ended = sent if record.ended is None else record.ended
    return ended >= kill.at and (kill.confirmed is None or sent <= kill.confirmed)


def _lost_connection(record: QueryRecord) -> bool:
    """Return whether it ended without a terminal event or a response, other than by a timeout.

    A stream may also break between its terminal event and its end.
    """
    reason = record.reason or ""
    if "Timeout" in reason or reason.startswith("no end within"):
        return False
    unfinished = record.terminals == 0 or (record.terminals == 1 and reason.startswith("the stream broke"))
    return not record.status or (record.status == 200 and unfinished)


def _lost_gateway(record: QueryRecord) -> bool:
    """Return whether Serve's proxy answered for a gateway. The gateway's own 500 has a code."""
    return record.status == 500 and record.reason == "HTTP 500"
