"""Where a search over several shards stands."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from protocol.errors import NoDocuments, RagtreeError, UnknownFilterKey
from protocol.retrieval import CandidateSet, Chunk


class Merging:
    """The best of what each shard has found so far, as one set.

    A shard is open while more is expected of it: until its final set, until it says that it has nothing to add, or
    until it is lost. What a lost shard had found still counts. Chunks come by score, then by shard, then as their shard
    orders them, so the outcome does not depend on who answers first; a chunk's id tells its shard.
    """

    def __init__(self, shards: int, top_k: int) -> None:
        self._top_k = top_k
        self._open = set(range(shards))
        self._silent = set(self._open)
        self._best: dict[int, CandidateSet] = {}
        self._refusals: list[RagtreeError] = []
        self._lost: dict[int, RagtreeError] = {}
        self._stage = 0

    @property
    def open(self) -> frozenset[int]:
        """The shards of which more is expected."""
        return frozenset(self._open)

    @property
    def due(self) -> bool:
        """Whether every open shard has come further since the last set."""
        return not self._silent

    def answered(self, shard: int) -> bool:
        """Whether a shard has given its final set."""
        return shard in self._best and self._best[shard].final

    def take(self, shard: int, found: CandidateSet) -> None:
        """Note what an open shard has found."""
        self._best[shard] = found
        self._silent.discard(shard)
        if found.final:
            self._open.discard(shard)

    def refuse(self, shard: int, error: RagtreeError) -> None:
        """Note that an open shard has nothing to add, and why."""
        self._refusals.append(error)
        self._close(shard)

    def lose(self, shard: int, error: RagtreeError) -> None:
        """Note that nothing more comes from an open shard, and why."""
        self._lost[shard] = error
        self._close(shard)

    def merged(self, elapsed_ms: float) -> CandidateSet:
        """The best of all shards as of now, as the search's next set; final when none is open any more.

        Raises why there is nothing to give, and UnknownFilterKey.
        """
        self._check()
        self._stage += 1
        self._silent = set(self._open)
        # No shard comes further more often, and with its last step it is no longer open: only the final set gets there.
        of = max(found.of for found in self._best.values())
        best = list(islice(_by_score(self._best.items()), self._top_k))
        return CandidateSet(
            stage=self._stage if self._open else of,
            of=of,
            docs=tuple(chunk_of(shard, chunk) for _, shard, chunk in best),
            scores=tuple(score for score, _, _ in best),
            final=not self._open,
            elapsed_ms=elapsed_ms,
            missing_shards=tuple(str(shard) for shard in sorted(self._lost)),
        )

    def _close(self, shard: int) -> None:
        self._open.discard(shard)
        self._silent.discard(shard)

    def _check(self) -> None:
        if not self._open and not any(map(self.answered, self._best)):
            # Nobody can say what the lost ones have. Of refusals, that there is a collection tells more.
            raise next(iter([*self._lost.values(), *sorted(self._refusals, key=_is_about_the_name)]))
        unknown = set.intersection(*(set(found.unknown_keys) for found in self._best.values()))
        if unknown:
            for shard, error in self._lost.items():
                if shard not in self._best:
                    raise error
            raise UnknownFilterKey(f"no document has an attribute {min(unknown)!r}", param="filters")


def chunk_of(shard: int, chunk: Chunk) -> Chunk:
    """A shard's chunk under an id that is unique over all shards."""
    return replace(chunk, chunk_id=f"{shard}.{chunk.chunk_id}")


def _is_about_the_name(refusal: RagtreeError) -> bool:
    return not isinstance(refusal, NoDocuments)


def _by_score(found: Iterable[tuple[int, CandidateSet]]) -> Iterator[tuple[float, int, Chunk]]:
    ranked = (
        [(score, shard, chunk) for chunk, score in zip(best.docs, best.scores, strict=True)]
        for shard, best in sorted(found, key=lambda item: item[0])
    )
    # Where scores are equal, what stands in an earlier row comes first.
    return heapq.merge(*ranked, key=lambda hit: -hit[0])
