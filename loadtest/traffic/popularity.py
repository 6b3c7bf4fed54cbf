"""How often which question is asked."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import TypeVar

T = TypeVar("T")


def zipf_draws(items: Sequence[T], exponent: float, draws: Random) -> Iterator[T]:
    """Items drawn for ever, the one of rank r in proportion to 1 / r ** ``exponent``; 0 is evenly.

    Which item has which rank is drawn first.
    """
    ranked = draws.sample(items, len(items))
    cumulated = list(accumulate(rank**-exponent for rank in range(1, len(ranked) + 1)))
    while True:
        yield draws.choices(ranked, cum_weights=cumulated)[0]
