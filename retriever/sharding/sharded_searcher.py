"""One search over all shards, concurrently."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

import structlog
from msgspec.structs import replace

from protocol.errors import InternalError, NoDocuments, RagtreeError, ShardTimeout, Unavailable, UnknownCollection
from protocol.retrieval import CandidateSet, SearchRequest
from retriever.settings import ShardSettings
from retriever.sharding.shard import Shard
from retriever.sharding.stage_merger import StageMerger

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

    def __init__(
        self, shards: Sequence[Shard], settings: ShardSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._shards = shards
        self._settings = settings
        self._clock = clock

    async def stages(
        self, request: SearchRequest, lost: Mapping[int, RagtreeError]
    ) -> AsyncGenerator[CandidateSet, None]:
        """Yield the stages of a search. Shards in ``lost`` are not asked. Closing it ends the searches of all shards.

        Raises as a retriever's search. For a lost shard it may raise that shard's error, or ShardTimeout, in any stage.
        """
        started = self._clock()
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
                merged = merger.merged(1000 * (self._clock() - started))
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
