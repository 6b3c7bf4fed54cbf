"""One search over all shards, concurrently, and their stages merged."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from protocol.errors import (
    InternalError,
    NoDocuments,
    RagtreeError,
    ShardTimeout,
    Unavailable,
    UnknownCollection,
    UnknownFilterKey,
)
from protocol.retrieval import CandidateSet, Chunk, SearchKind, SearchRequest
from retriever.search.fusion import depth, ranked
from retriever.settings import ShardSettings
from retriever.sharding.shard_group import Shard


class _Key(NamedTuple):
    """A candidate: its shard, and its place among the shard's candidates."""

    shard: int
    place: int


class StageMerger:
    """Merges the latest candidates of each shard into one set.

    A shard is open until it sends its final set, reports that it has no documents, or is lost. The candidates of a lost
    shard still count. Shards send both rankings of a hybrid search, which are merged one by one and then fused. A
    ranking is ordered by score, then by shard, then by the shard's order, so the result does not depend on which shard
    answers first. A chunk's id names its shard. A merged set has ``shown`` chunks, or ``top_k`` if those are more.
    """

    def __init__(self, shards: int, top_k: int, shown: int = 0) -> None:
        self._top_k = top_k
        self._shown = max(top_k, shown)
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
        kind = min(self._best.items())[1].search
        count = depth(kind, self._top_k, self._shown)
        dense = _ranking({shard: found.ranking(SearchKind.DENSE) for shard, found in self._best.items()}, count)
        sparse = _ranking({shard: found.ranking(SearchKind.SPARSE) for shard, found in self._best.items()}, count)
        best = list(islice(ranked(kind, dense, sparse, count).items(), self._shown))
        return CandidateSet(
            stage=self._stage if self._open else of,
            of=of,
            docs=tuple(chunk_of(shard, self._best[shard].docs[place]) for (shard, place), _ in best),
            scores=tuple(hit.score for _, hit in best),
            final=not self._open,
            elapsed_ms=elapsed_ms,
            search=kind,
            dense_scores=tuple(hit.dense for _, hit in best),
            sparse_scores=tuple(hit.sparse for _, hit in best),
            missing_shards=tuple(str(shard) for shard in sorted(self._lost)),
            revisions=tuple(revision for _, found in sorted(self._best.items()) for revision in found.revisions),
        )

    def _close(self, shard: int) -> None:
        self._open.discard(shard)
        self._awaited.discard(shard)

    def _check(self) -> None:
        if not self._open and not any(map(self.answered, self._best)):
            # A lost shard may have documents, so its error comes first. NoDocuments says more than UnknownCollection.
            empty = sorted(self._empty_errors, key=lambda error: not isinstance(error, NoDocuments))
            raise [*self._lost.values(), *empty][0]
        unknown = set.intersection(*(set(found.unknown_keys) for found in self._best.values()))
        if unknown:
            for shard, error in self._lost.items():
                if shard not in self._best:
                    raise error
            raise UnknownFilterKey(f"no document has an attribute {min(unknown)!r}", param="filters")


def chunk_of(shard: int, chunk: Chunk) -> Chunk:
    """Return a shard's chunk with an id that is unique over all shards."""
    return replace(chunk, chunk_id=f"{shard}.{chunk.chunk_id}")


def _ranking(scores: Mapping[int, Sequence[float | None]], count: int) -> dict[_Key, float]:
    """The ``count`` best candidates of all shards in one ranking, best first."""
    found = [
        (score, _Key(shard, place))
        for shard, of_shard in sorted(scores.items())
        for place, score in enumerate(of_shard)
        if score is not None
    ]
    found.sort(key=lambda hit: -hit[0])
    return {key: score for score, key in found[:count]}


_log = structlog.get_logger(__name__)

_CLOSE_TIMEOUT_S = 0.05
"""How long a stream may take to end after its final set before it is closed."""

_Event = tuple[int, CandidateSet | Exception] | None
"""A shard's candidates or error. None when the time is up."""


class ShardedSearcher:
    """Searches all shards at once and merges their stages.

    It yields a merged set when every open shard has sent a new one, not whenever one has. Each provisional set costs
    the caller a decision.
    """

    def __init__(self, shards: Sequence[Shard], settings: ShardSettings) -> None:
        self._shards = shards
        self._settings = settings

    async def stages(
        self, request: SearchRequest, lost: Mapping[int, RagtreeError]
    ) -> AsyncGenerator[CandidateSet, None]:
        """Yield the stages of a search. Shards in ``lost`` are not asked. Closing it ends the searches of all shards.

        Raises as a retriever's search. For a lost shard it may raise that shard's error, or ShardTimeout, in any stage.
        """
        started = time.perf_counter()
        merger = StageMerger(len(self._shards), request.top_k, request.shown)
        for shard, error in lost.items():
            self._lose(merger, shard, error)
        asked = replace(request, check_keys=False, fuse=False, rerank=False)
        events: asyncio.Queue[_Event] = asyncio.Queue()
        readers = {
            shard: asyncio.create_task(_read(shard, self._shards[shard].search(asked), events)) for shard in merger.open
        }
        alarm = asyncio.get_running_loop().call_later(self._settings.timeout_s, events.put_nowait, None)
        try:
            while True:
                while not (merger.ready and events.empty()):
                    self._handle(merger, await events.get())
                merged = merger.merged(1000 * (time.perf_counter() - started))
                yield merged
                if merged.final:
                    return
        finally:
            alarm.cancel()
            for shard, reader in readers.items():
                # After the final set, the reader ends by itself.
                if not merger.answered(shard):
                    reader.cancel()
            await asyncio.gather(*readers.values(), return_exceptions=True)

    def _handle(self, merger: StageMerger, event: _Event) -> None:
        if event is None:
            for shard in sorted(merger.open):
                limit_s = self._settings.timeout_s
                self._lose(merger, shard, ShardTimeout(f"shard {shard} did not answer within {limit_s:g} s"))
            return
        shard, outcome = event
        if shard not in merger.open:
            return
        match outcome:
            case CandidateSet():
                merger.add(shard, outcome)
            case UnknownCollection() | NoDocuments():
                merger.mark_empty(shard, outcome)
            case Unavailable() | InternalError():
                self._lose(merger, shard, outcome)
            case _:
                raise outcome

    def _lose(self, merger: StageMerger, shard: int, error: RagtreeError) -> None:
        if self._settings.on_lost == "error":
            raise error
        _log.debug("search continues without a shard", shard=shard, reason=error.message)
        merger.mark_lost(shard, error)


async def _read(shard: int, stages: AsyncGenerator[CandidateSet, None], events: asyncio.Queue[_Event]) -> None:
    try:
        async with aclosing(stages):
            async for found in stages:
                events.put_nowait((shard, found))
                if found.final:
                    # Closing a stream cancels the shard's work. Let a finished search end by itself first.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                            await anext(stages, None)
                    return
        raise InternalError(f"the search of shard {shard} ended without its final documents")
    except Exception as error:
        events.put_nowait((shard, error))
