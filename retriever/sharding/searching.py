"""One search made of searches of all shards, side by side."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog
from msgspec.structs import replace

from protocol.errors import InternalError, NoDocuments, RagtreeError, ShardTimeout, Unavailable, UnknownCollection
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.settings import ShardSettings
from retriever.sharding.merging import Merging
from retriever.sharding.shard import Shard

_log = structlog.get_logger(__name__)

_ENDING_S = 0.05
"""How long a stream may take to end behind its final set before it is broken off."""

_News = tuple[int, CandidateSet | Exception] | None
"""What a shard has found, or what it raised; None when the time is up."""


class ShardedSearcher:
    """Searches all shards at once, and merges their stages.

    There is a merged set whenever every shard of which more is expected has come further, and not each time that one
    has: a provisional set costs whoever has to decide about it.
    """

    def __init__(
        self, shards: Sequence[Shard], settings: ShardSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._shards = shards
        self._settings = settings
        self._clock = clock

    async def stages(
        self, request: SearchRequest, absent: Mapping[int, RagtreeError]
    ) -> AsyncGenerator[CandidateSet, None]:
        """The stages of a search; the shards in ``absent`` are lost already. Closing this ends every shard's search.

        Raises as a retriever's search, and in any stage, for a shard that is lost, its error or ShardTimeout.
        """
        started = self._clock()
        merging = Merging(len(self._shards), request.top_k)
        for shard, error in absent.items():
            self._lose(merging, shard, error)
        asked = replace(request, check_keys=False)
        news: asyncio.Queue[_News] = asyncio.Queue()
        readers = {
            shard: asyncio.create_task(_read(shard, self._shards[shard].search(asked), news)) for shard in merging.open
        }
        alarm = asyncio.get_running_loop().call_later(self._settings.timeout_s, news.put_nowait, None)
        try:
            while True:
                while not (merging.due and news.empty()):
                    self._hear(merging, await news.get())
                merged = merging.merged(1000 * (self._clock() - started))
                yield merged
                if merged.final:
                    return
        finally:
            alarm.cancel()
            for shard, reader in readers.items():
                # With its final set a search is at its end, and its reader soon.
                if not merging.answered(shard):
                    reader.cancel()
            await asyncio.gather(*readers.values(), return_exceptions=True)

    def _hear(self, merging: Merging, news: _News) -> None:
        if news is None:
            for shard in sorted(merging.open):
                limit_s = self._settings.timeout_s
                self._lose(merging, shard, ShardTimeout(f"shard {shard} did not answer in time (limit {limit_s:g} s)"))
            return
        shard, outcome = news
        if shard not in merging.open:
            return
        match outcome:
            case CandidateSet():
                merging.take(shard, outcome)
            case UnknownCollection() | NoDocuments():
                merging.refuse(shard, outcome)
            case Unavailable() | InternalError():
                self._lose(merging, shard, outcome)
            case _:
                raise outcome

    def _lose(self, merging: Merging, shard: int, error: RagtreeError) -> None:
        if self._settings.on_lost == "error":
            raise error
        _log.debug("search goes on without a shard", shard=shard, reason=error.message)
        merging.lose(shard, error)


async def _read(shard: int, stages: AsyncGenerator[CandidateSet, None], news: asyncio.Queue[_News]) -> None:
    try:
        async with aclosing(stages):
            async for found in stages:
                news.put_nowait((shard, found))
                if found.final:
                    # Closing a stream breaks the shard's work off, which is not called for where it ends by itself.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_ENDING_S):
                            await anext(stages, None)
                    return
        raise InternalError(f"the search of shard {shard} ended without its final documents")
    except Exception as error:
        news.put_nowait((shard, error))
