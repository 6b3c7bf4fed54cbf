"""Reranking with shards: after the merge, in one of them."""

from collections.abc import Sequence
from itertools import count

from retriever.reranking.base import Scores
from retriever.sharding.shard_group import ShardGroup


class ShardReranker:
    """Asks the shards' rerankers in turn, so that they share the work. Each shard has the same one."""

    def __init__(self, shards: ShardGroup) -> None:
        self._shards = shards
        self._turn = count()

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the score of each text. Raises RerankFailed, and a shard's error if it, or every shard, is lost."""
        lost = self._shards.lost
        there = [number for number in self._shards.numbers if number not in lost] or [0]
        return await self._shards[there[next(self._turn) % len(there)]].rerank(query, texts, wanted)
