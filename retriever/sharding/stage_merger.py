"""Merge the stages of one search over several shards."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from protocol.errors import NoDocuments, RagtreeError, UnknownFilterKey
from protocol.retrieval import CandidateSet, Chunk


class StageMerger:
    """Merges the latest candidates of each shard into one set.

    A shard is open until it sends its final set, reports that it has no documents, or is lost. The candidates of a lost
    shard still count. Candidates are ordered by score, then by shard, then by the shard's order, so the result does not
    depend on which shard answers first. A chunk's id names its shard.
    """

    def __init__(self, shards: int, top_k: int) -> None:
        self._top_k = top_k
        self._open = set(range(shards))
        self._awaited = set(self._open)
        self._best: dict[int, CandidateSet] = {}
        self._empty_errors: list[RagtreeError] = []
        self._lost: dict[int, RagtreeError] = {}
        self._stage = 0

    @property
    def open(self) -> frozenset[int]:
        """The shards that have not finished."""
        return frozenset(self._open)

    @property
    def ready(self) -> bool:
        """Whether every open shard has sent a set since the last merged one."""
        return not self._awaited

    def answered(self, shard: int) -> bool:
        """Return whether a shard has sent its final set."""
        return shard in self._best and self._best[shard].final

    def add(self, shard: int, found: CandidateSet) -> None:
        """Record an open shard's latest candidates."""
        self._best[shard] = found
        self._awaited.discard(shard)
        if found.final:
            self._open.discard(shard)

    def mark_empty(self, shard: int, error: RagtreeError) -> None:
        """Record that an open shard has nothing to search, and why."""
        self._empty_errors.append(error)
        self._close(shard)

    def mark_lost(self, shard: int, error: RagtreeError) -> None:
        """Record that an open shard is lost, and why."""
        self._lost[shard] = error
        self._close(shard)

    def merged(self, elapsed_ms: float) -> CandidateSet:
        """Return the best candidates of all shards as the next stage. It is final when no shard is open.

        Raises the error of a shard if there is nothing to return, and UnknownFilterKey.
        """
        self._check()
        self._stage += 1
        self._awaited = set(self._open)
        # The shard with the most stages bounds the number of merged sets, so only the final one reaches ``of``.
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
        self._awaited.discard(shard)

    def _check(self) -> None:
        if not self._open and not any(map(self.answered, self._best)):
            # A lost shard may have documents, so its error comes first. NoDocuments says more than UnknownCollection.
            raise next(iter([*self._lost.values(), *sorted(self._empty_errors, key=_is_unknown_collection)]))
        unknown = set.intersection(*(set(found.unknown_keys) for found in self._best.values()))
        if unknown:
            for shard, error in self._lost.items():
                if shard not in self._best:
                    raise error
            raise UnknownFilterKey(f"no document has an attribute {min(unknown)!r}", param="filters")


def chunk_of(shard: int, chunk: Chunk) -> Chunk:
    """Return a shard's chunk with an id that is unique over all shards."""
    return replace(chunk, chunk_id=f"{shard}.{chunk.chunk_id}")


def _is_unknown_collection(error: RagtreeError) -> bool:
    return not isinstance(error, NoDocuments)


def _by_score(found: Iterable[tuple[int, CandidateSet]]) -> Iterator[tuple[float, int, Chunk]]:
    ranked = (
        [(score, shard, chunk) for chunk, score in zip(best.docs, best.scores, strict=True)]
        for shard, best in sorted(found, key=lambda item: item[0])
    )
    # The merge is stable: among equal scores, lower shards come first.
    return heapq.merge(*ranked, key=lambda hit: -hit[0])
