"""Parts of random histories: events, and choices among what is there when an event happens."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

indices = st.integers(0, 99)
"""Choices for ``pick``. Drawing from one fixed strategy is much cheaper than building a strategy for each list."""


def pick(items: Sequence[T], index: int) -> T:
    """An item of a list that is not empty."""
    return items[index % len(items)]


def event(name: str, **arguments: st.SearchStrategy) -> st.SearchStrategy:
    """An event: the name of a method, and its arguments."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))
