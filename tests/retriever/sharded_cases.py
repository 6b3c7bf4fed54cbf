"""Helpers for tests of sharding: scripted shards and real ones."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from retriever_cases import TENANT, running
from varied import varied

from protocol.errors import RagtreeError
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from retriever.retriever import Retriever
from retriever.settings import ShardSettings
from retriever.sharding.sharded_retriever import ShardedRetriever

REQUEST = SearchRequest(TENANT, "default", "what is it?", 3)
PARTIAL = {"on_lost": "partial"}


def found(stage: int, of: int, scores: dict[str, float] | None = None, **fields: Any) -> CandidateSet:
    """A candidate set of chunks with these names and scores, best first."""
    best = sorted((scores or {}).items(), key=lambda item: -item[1])
    docs = tuple(Chunk(name, name, name, 0, name, name) for name, _ in best)
    return CandidateSet(stage, of, docs, tuple(score for _, score in best), stage == of, float(stage), **fields)


class ScriptedShard:
    """A shard whose searches follow a script: yield sets, raise errors, wait for events."""

    def __init__(self, *script: CandidateSet | Exception | asyncio.Event) -> None:
        self.script = script
        self.requests: list[SearchRequest] = []
        self.open = 0
        self.missing: RagtreeError | asyncio.Event | None = None

    async def search(self, request: SearchRequest) -> AsyncIterator[CandidateSet]:
        self.requests.append(request)
        self.open += 1
        try:
            for step in self.script:
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            self.open -= 1

    async def ready(self) -> None:
        if isinstance(self.missing, asyncio.Event):
            await self.missing.wait()
        elif self.missing is not None:
            raise self.missing


def sharded(*shards: ScriptedShard, **settings: Any) -> ShardedRetriever:
    return ShardedRetriever(shards, varied(ShardSettings, count=len(shards), **settings), ready_within_s=0.05)


async def sets_of(retriever: ShardedRetriever, request: SearchRequest = REQUEST) -> list[CandidateSet]:
    """All sets of a search. Checks that their stages ascend and only the last is final."""
    async with asyncio.timeout(20):
        sets = [candidates async for candidates in retriever.search(request)]
    assert [each.final for each in sets] == [False] * (len(sets) - 1) + [True]
    assert [each.stage == each.of for each in sets] == [each.final for each in sets]
    stages = [each.stage for each in sets]
    assert stages == sorted(set(stages))
    return sets


def names(candidates: CandidateSet) -> list[str]:
    return [chunk.chunk_id for chunk in candidates.docs]


@asynccontextmanager
async def running_shards(
    folder: Path, count: int = 3, **changes: Any
) -> AsyncIterator[tuple[ShardedRetriever, list[Retriever]]]:
    """Real retrievers in separate folders, and the sharded retriever over them."""
    async with AsyncExitStack() as stack:
        shards = [await stack.enter_async_context(running(folder / str(n), **changes)) for n in range(count)]
        yield ShardedRetriever(shards, ShardSettings(count=count), ready_within_s=3.0), shards
