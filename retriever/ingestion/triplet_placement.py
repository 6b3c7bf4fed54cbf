"""Which chunks of a document state the triplets that were uploaded with it."""

from collections import defaultdict
from collections.abc import Sequence

from protocol.graph import Triplet
from retriever.graph.name_finder import NameFinder
from retriever.graph.names import name_key

MOST_CHUNKS = 16
"""Of one triplet. Otherwise, ten thousand triplets of a long document about one thing would be stated by all of it."""


def triplets_by_chunk(chunks: Sequence[str], triplets: Sequence[Triplet]) -> list[tuple[Triplet, ...]]:
    """Return the triplets of each chunk of a document, in their order. There must be a chunk.

    A triplet is stated by the first ``MOST_CHUNKS`` chunks that name both of its ends. If there is none, it is stated
    by the first chunk that names one of them, or else by the first chunk.
    """
    keys = {end: name_key(end) for triplet in triplets for end in (triplet.head, triplet.tail)}
    finder = NameFinder(keys.values())
    naming: dict[str, set[int]] = defaultdict(set)
    if triplets:
        for number, text in enumerate(chunks):
            for key in finder.found_in(text):
                naming[key].add(number)
    stated: list[list[Triplet]] = [[] for _ in chunks]
    for triplet in triplets:
        heads, tails = naming[keys[triplet.head]], naming[keys[triplet.tail]]
        for number in sorted(heads & tails)[:MOST_CHUNKS] or [min(heads | tails, default=0)]:
            stated[number].append(triplet)
    return [tuple(found) for found in stated]
