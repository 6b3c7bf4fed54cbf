"""How near answers under one attention come to those under another, over the same facts."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from benchmarks.measuring.agreement import agreement
from benchmarks.measuring.answer_scores import f1
from benchmarks.measuring.engines import Generation
from benchmarks.measuring.statistics import bootstrap_interval


class Compared(NamedTuple):
    """Two answers to one question, whose right ones are ``answers``: under self-attention (``full``), and another."""

    answers: Sequence[str]
    full: Generation
    other: Generation


class QualityRow(msgspec.Struct, frozen=True):
    """One way beside self-attention.

    ``first_token_agreement`` is how often answers begin with the same token. ``kl`` is the mean divergence of their
    first tokens' distributions from those of self-attention, in nats, over its most likely tokens. ``f1`` and
    ``full_f1`` are mean scores, from 0 to 1, and ``difference`` is the 95 % bootstrap interval of their difference.
    """

    way: str
    questions: int
    first_token_agreement: float
    kl: float
    f1: float
    full_f1: float
    difference: tuple[float, float]


def quality_row(way: str, compared: Sequence[Compared]) -> QualityRow:
    """The row of one way. Raises ValueError without any answers."""
    first = [agreement(one.full.logprobs[:1], one.other.logprobs[:1]) for one in compared]
    scores = [(f1(one.other.text, one.answers), f1(one.full.text, one.answers)) for one in compared]
    return QualityRow(
        way,
        len(compared),
        fmean(one.agreed for one in first),
        fmean(one.divergences[0] for one in first),
        fmean(own for own, _ in scores),
        fmean(full for _, full in scores),
        bootstrap_interval([own - full for own, full in scores], 0),
    )
