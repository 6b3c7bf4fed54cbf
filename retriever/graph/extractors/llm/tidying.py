"""Triplets of a language model as a graph may have them."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from protocol.graph import Triplet
from retriever.graph.names import LONGEST_NAME, name_key, tidy

_MOST_TRIPLETS = 64
"""Of one chunk, the first ones. A model that repeats itself must not fill the graph."""

_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and halves of a character. JSON can spell both, but the store cannot keep the latter."""


def tidied(triplets: Iterable[Triplet]) -> list[Triplet]:
    """Return the triplets with tidy names, each once. One of a thing with itself is left out, or without a name."""
    tidy_ones = (Triplet(*map(tidy, triplet)) for triplet in triplets)
    return list(islice(_once(filter(_is_fact, tidy_ones)), _MOST_TRIPLETS))


def _is_fact(triplet: Triplet) -> bool:
    if any(len(part) > LONGEST_NAME or _NO_TEXT.search(part) for part in triplet):
        return False
    head, tail = name_key(triplet.head), name_key(triplet.tail)
    return bool(head and tail and triplet.relation) and head != tail


def _once(triplets: Iterable[Triplet]) -> Iterator[Triplet]:
    seen: set[tuple[str, str, str]] = set()
    for triplet in triplets:
        key = name_key(triplet.head), triplet.relation.casefold(), name_key(triplet.tail)
        if key not in seen:
            seen.add(key)
            yield triplet
