"""Differences of answers that should be equal.

An engine's rounding depends on how many tokens a step computes. So the same prompt gives slightly other logprobs if a
part of it is cached, with any cache. The rounding is measured: without RAGTree, with vLLM's own prefix cache.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from examine.measuring.engines import Generation

_TIMES = 3.0
_LEAST_ROUNDING = 1e-3
_LEAST_REPEAT = 1e-5


class Tolerances(NamedTuple):
    """The differences of logprobs that are the engine's own.

    ``rounding`` is for prompts of which different parts were computed, ``repeat`` for equal steps over equal KV.
    """

    rounding: float
    repeat: float

    @classmethod
    def measured(
        cls, alone: Sequence[Generation], behind: Sequence[Generation], again: Sequence[Generation]
    ) -> "Tolerances":
        """Take them from answers ``alone``, and two runs of answers ``behind`` KV in vLLM's own prefix cache."""
        return cls(
            rounding=max(_LEAST_ROUNDING, _TIMES * _largest(alone, behind)),
            repeat=max(_LEAST_REPEAT, _TIMES * _largest(behind, again)),
        )


def differ(one: Generation, other: Generation, tolerance: float) -> bool:
    """Return whether two greedy answers differ by more than ``tolerance`` explains.

    Rounding can also turn a near tie of two tokens. Neither then has much more than half of the probability.
    """
    for mine, theirs in zip(one.logprobs, other.logprobs, strict=False):
        if abs(mine.logprob - theirs.logprob) > tolerance:
            return True
        if mine.token_id != theirs.token_id:
            return max(mine.logprob, theirs.logprob) > math.log(0.5) + tolerance
    return len(one.logprobs) != len(other.logprobs)


def _largest(ones: Sequence[Generation], others: Sequence[Generation]) -> float:
    """Return the largest difference of logprobs, up to and including the first token that differs."""
    largest = 0.0
    for one, other in zip(ones, others, strict=True):
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=False):
            largest = max(largest, abs(mine.logprob - theirs.logprob))
            if mine.token_id != theirs.token_id:
                break
    return largest
