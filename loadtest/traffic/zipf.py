"""The popularity of questions."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import TypeVar

T = TypeVar("T")


def zipf_draws(items: Sequence[T], exponent: float, draws: Random) -> Iterator[T]:
    """Yield random items forever, the one of rank r in proportion to 1 / r ** ``exponent``. 0 is uniform.

    The ranks are shuffled first.
    """
    ranked = draws.sample(items, len(items))
    cumulative = list(accumulate(rank**-exponent for rank in range(1, len(ranked) + 1)))
    while True:
        yield draws.choices(ranked, cum_weights=cumulative)[0]
