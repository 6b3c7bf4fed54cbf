"""The gate of composed reuse: what was found out about composing a model's KV."""

import msgspec

from protocol.dependency import TreePositions

SELECTION = 4
"""The version of what decides on composed answers: the selectors, what recomputed tokens attend to, and the text around
documents in prompts.

A report of an earlier one says nothing about this one.
"""

DEPENDENCY = "dependency"
"""How methods of reports on dependency attention over facts begin. They compute nothing again."""

DEPENDENCY_AT_DEPTH = f"{DEPENDENCY}-{TreePositions.DEPTH.value}"
"""The method of reports on facts in trees as they are served."""

TREES = 5
"""The version of what decides on answers over facts in trees: how paths become branches, and the text around them in
prompts. Reports on them had the version of the selectors once, up to 4.
"""


def current_version(method: str) -> int:
    """The version of what reports on a method examine now."""
    return TREES if method.startswith(DEPENDENCY) else SELECTION


class GateTask(msgspec.Struct, frozen=True):
    """Mean scores on one kind of question, from 0 to 1: of composed prompts, and of the same prompts prefilled in full.

    With 95 % confidence, composing loses at most ``most_lost`` of the full score. A task that ``tells`` nothing is one
    that the model cannot do even after a full prefill.
    """

    name: str
    questions: int
    score: float
    full_score: float
    most_lost: float
    tells: bool


class GateReport(msgspec.Struct, frozen=True):
    """Whether composing has ``passed`` for KV of this ``fingerprint``, with ``share`` of the donated tokens recomputed.

    ``method`` is the selector of these tokens. ``why`` says in one sentence why it has not passed. ``top1_agreement``
    is how often the first tokens of an answer are those of a full prefill. ``bound`` is the deviation up to which the
    examined prompts speak for others (``PrefillResult.deviation``). ``examined_at`` is in seconds since the epoch.
    ``selection`` is the ``current_version`` that was examined; files from before it have none.
    """

    fingerprint: str
    model: str
    method: str
    share: float
    passed: bool
    why: str
    tasks: tuple[GateTask, ...]
    top1_agreement: float
    kl: float
    bound: float
    examined_at: float
    selection: int = 0


class GateReports(msgspec.Struct, frozen=True):
    """What is known about several models, methods and shares."""

    reports: tuple[GateReport, ...]
