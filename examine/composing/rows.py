"""Rows of results: quality of composed answers, compared with those of full prefills, and how far both agree."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import msgspec

from examine.composing.tasks import Probe
from examine.measuring.engines import Generation
from examine.measuring.statistics import grouped_bootstrap_interval
from protocol.generation import TokenLogprob

FULL = "full"
"""The method that composes nothing: a full prefill, done a second time."""


class Way(NamedTuple):
    """A way to prefill: a method, and the share of donated tokens that it may compute again."""

    method: str
    share: float


class Interval(msgspec.Struct, frozen=True):
    """A 95 % bootstrap interval."""

    low: float
    high: float


class ComposeRow(msgspec.Struct, frozen=True):
    """Results of one way on one task, over ``questions`` questions.

    ``score`` and ``full_score`` are mean scores, of this way's answers and of the full prefills'. ``difference`` is the
    interval of the mean difference, question by question; questions about the same chunks count as dependent.
    ``actual_share`` is the share of donated tokens that were computed again.

    ``top1_agreement`` is how often a token is the one that the full prefill has in its place, up to and including the
    first that is not; ``kl`` is the mean Kullback-Leibler divergence at these places, of the full prefill's
    distribution from this way's, in nats, over the full prefill's most likely tokens. For the method ``full`` they
    compare two full prefills, which differ only by rounding.

    ``deviation`` is the highest of the questions (``PrefillResult.deviation``). ``prefill_speedup`` is the full
    prefill's time to first token over this way's, as a median over prompts of known documents that are sent alone; None
    where that was not measured.
    """

    model: str
    method: str
    task: str
    share: float
    actual_share: float
    questions: int
    score: float
    full_score: float
    difference: Interval
    top1_agreement: float
    kl: float
    deviation: float
    prefill_speedup: float | None = None


class Answered(NamedTuple):
    """What was asked about the same chunks, and the answers after full prefills and after another way to prefill."""

    asked: Sequence[Probe]
    full: Sequence[Generation]
    came: Sequence[Generation]


def row_of(model: str, name: str, way: Way, answered: Sequence[Answered]) -> ComposeRow:
    """Compare answers with those of full prefills."""
    scores = [_scores(one.asked, one.came) for one in answered]
    right = [_scores(one.asked, one.full) for one in answered]
    differences = [[mine - its for mine, its in zip(*group, strict=True)] for group in zip(scores, right, strict=True)]
    came = [answer for one in answered for answer in one.came]
    full = [answer for one in answered for answer in one.full]
    places = [agreement(exact.logprobs, one.logprobs) for exact, one in zip(full, came, strict=True)]
    agreed, divergences = sum(place.agreed for place in places), [kl for place in places for kl in place.divergences]
    reused = sum(one.prefill.composed_tokens for one in came)
    recomputed = sum(one.prefill.recomputed_tokens for one in came)
    return ComposeRow(
        model=model,
        method=way.method,
        task=name,
        share=way.share,
        actual_share=recomputed / (reused + recomputed) if reused + recomputed else 1.0,
        questions=len(came),
        score=fmean(chain.from_iterable(scores)),
        full_score=fmean(chain.from_iterable(right)),
        difference=Interval(*grouped_bootstrap_interval(differences, 0)),
        top1_agreement=agreed / len(divergences),
        kl=fmean(divergences),
        deviation=max(one.prefill.deviation for one in came),
    )


def _scores(asked: Sequence[Probe], answers: Sequence[Generation]) -> list[float]:
    return [one.score(one.opening + answer.text, one.answers) for one, answer in zip(asked, answers, strict=True)]


_LEAST_PROBABILITY = 1e-6
"""Of a token that is not among the alternatives."""


class Agreement(NamedTuple):
    """How many places of two answers have the same token, and the divergence at each place that was compared."""

    agreed: int
    divergences: list[float]


def agreement(full: Sequence[TokenLogprob], other: Sequence[TokenLogprob]) -> Agreement:
    """Compare answers up to the first token that differs: after it, they continue different texts."""
    agreed, divergences = 0, []
    for exact, found in zip(full, other, strict=False):
        divergences.append(_divergence(exact.alternatives, found.alternatives))
        if exact.token_id != found.token_id:
            break
        agreed += 1
    return Agreement(agreed, divergences)


def _divergence(full: Mapping[int, float], other: Mapping[int, float]) -> float:
    """KL of two distributions, by the logarithms of likely tokens' probabilities; all other tokens count as one."""
    least = math.log(_LEAST_PROBABILITY)
    pairs = [(logprob, max(least, other.get(token, least))) for token, logprob in full.items()]
    rest = [max(_LEAST_PROBABILITY, 1 - sum(math.exp(pair[side]) for pair in pairs)) for side in (0, 1)]
    pairs.append((math.log(rest[0]), math.log(rest[1])))
    return max(0.0, sum(math.exp(own) * (own - its) for own, its in pairs))
