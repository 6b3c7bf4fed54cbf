"""Whether composing passes the gate, by what it does to answers."""

from collections.abc import Sequence
from statistics import fmean

from examine.composing.rows import ComposeRow
from protocol.gate import GateReport, GateTask, current_version

_LEAST_FULL_SCORE = 0.2
"""A model that scores less after a full prefill cannot do a task, so the task tells nothing about composing."""

_MOST_LOST = 0.1
"""The share of the full prefill's score that composing may lose on each task, with 95 % confidence."""

_BOUND_MARGIN = 1.25
"""Over the highest deviation of the questions. A prompt that deviates more is unlike all of them."""


def decided(rows: Sequence[ComposeRow]) -> bool:
    """Whether more questions would hardly change what the rows say of their task.

    It may be asked twice before all questions are. The interval of the difference has 2.5 % on each side; three looks
    at it are wrong in about 5 % (Pocock 1977).
    """
    return all(
        not task.tells or task.most_lost <= _MOST_LOST or -row.difference.high > _MOST_LOST * row.full_score
        for row, task in zip(rows, map(_task, rows), strict=True)
    )


def verdict(rows: Sequence[ComposeRow], fingerprint: str, now: float) -> GateReport:
    """Judge one way to compose by its rows, one for each task. ``now`` is in seconds since the epoch."""
    tasks = tuple(map(_task, rows))
    why = _objection(tasks)
    return GateReport(
        fingerprint=fingerprint,
        model=rows[0].model,
        method=rows[0].method,
        share=rows[0].share,
        passed=not why,
        why=why,
        tasks=tasks,
        top1_agreement=fmean(row.top1_agreement for row in rows),
        kl=fmean(row.kl for row in rows),
        bound=_BOUND_MARGIN * max(row.deviation for row in rows),
        examined_at=now,
        selection=current_version(rows[0].method),
    )


def _task(row: ComposeRow) -> GateTask:
    tells = row.full_score >= _LEAST_FULL_SCORE
    most_lost = max(0.0, -row.difference.low) / row.full_score if row.full_score else 1.0
    return GateTask(row.task, row.questions, row.score, row.full_score, most_lost, tells)


def _objection(tasks: Sequence[GateTask]) -> str:
    telling = [task for task in tasks if task.tells]
    if not telling:
        return "the model answers too few questions even after a full prefill, so nothing can be said"
    worst = max(telling, key=lambda task: task.most_lost)
    if worst.most_lost > _MOST_LOST:
        return (
            f"on {worst.name}, composing may lose {worst.most_lost:.0%} of the full prefill's score "
            f"({worst.score:.2f} against {worst.full_score:.2f}), more than {_MOST_LOST:.0%}"
        )
    return ""
