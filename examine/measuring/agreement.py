"""How far two answers of one model agree: their tokens, and the distributions that these were chosen from."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from protocol.generation import TokenLogprob

_LEAST_PROBABILITY = 1e-6
"""Of a token that is not among the alternatives."""


class Agreement(NamedTuple):
    """How many places of two answers have the same token, and the divergence at each place that was compared."""

    agreed: int
    divergences: list[float]


def agreement(full: Sequence[TokenLogprob], other: Sequence[TokenLogprob]) -> Agreement:
    """Compare answers up to the first token that differs: behind it, they continue different texts."""
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
