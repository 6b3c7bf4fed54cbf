"""Which chunks of a document state the triplets that were uploaded with it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from protocol.graph import Triplet
from retriever.graph.names import NameFinder, name_key

MOST_CHUNKS = 16
"""Of one triplet. Otherwise, ten thousand triplets of a long document about one thing would be stated by all of it."""


def triplets_by_chunk(chunks: Sequence[str], triplets: Sequence[Triplet]) -> list[tuple[Triplet, ...]]:
    """Return the triplets of each chunk of a document, in their order."""
    placed = placed_triplets(chunks, triplets)
    return [placed.get(position, ()) for position in range(len(chunks))]


def placed_triplets(chunks: Iterable[str], triplets: Sequence[Triplet]) -> Mapping[int, tuple[Triplet, ...]]:
    """Return the triplets of those chunks of a document that state any, by the chunk's position, in their order.

    A triplet is stated by the first ``MOST_CHUNKS`` chunks that name both of its ends. If there is none, it is stated
    by the first chunk that names one of them, or else by the first chunk. Chunks are read once and not kept.
    """
    keys = [(name_key(triplet.head), name_key(triplet.tail)) for triplet in triplets]
    finder = NameFinder(key for ends in keys for key in ends)
    of_head: dict[str, set[int]] = defaultdict(set)
    for number, (head, _) in enumerate(keys):
        of_head[head].add(number)
    places: list[list[int]] = [[] for _ in triplets]
    first: dict[str, int] = {}
    for position, text in enumerate(chunks if triplets else ()):
        found = finder.found_in(text)
        for key in found:
            first.setdefault(key, position)
            for number in tuple(of_head.get(key, ())):
                if keys[number][1] in found:
                    places[number].append(position)
                    if len(places[number]) == MOST_CHUNKS:
                        of_head[key].discard(number)
    stated: dict[int, list[Triplet]] = defaultdict(list)
    for triplet, ends, positions in zip(triplets, keys, places, strict=True):
        for position in positions or [min((first[key] for key in ends if key in first), default=0)]:
            stated[position].append(triplet)
    return {position: tuple(found) for position, found in stated.items()}
