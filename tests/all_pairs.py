"""Combinations of options: few rows in which any two values of two options meet."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

_TRIES = 40


def all_pairs(options: Mapping[str, Sequence[Any]], seed: int = 1) -> list[dict[str, Any]]:
    """Rows with one value for each option. Each is the best of some tries: the one with most pairs that none had."""
    random = Random(seed)
    names = list(options)
    left = {
        ((one, a), (other, b))
        for one, other in combinations(names, 2)
        for a in range(len(options[one]))
        for b in range(len(options[other]))
    }
    rows = []
    while left:
        # It contains one pair at least, so it ends.
        wanted = dict(min(left))
        tries = [
            {name: wanted.get(name, random.randrange(len(options[name]))) for name in names} for _ in range(_TRIES)
        ]
        best = max(tries, key=lambda row: len(left & _pairs_of(row)))
        left -= _pairs_of(best)
        rows.append({name: options[name][at] for name, at in best.items()})
    return rows


def _pairs_of(row: Mapping[str, int]) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return set(combinations(row.items(), 2))
