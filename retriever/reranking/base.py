"""The interface of rerankers, and what uses one."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

from protocol.retrieval import CandidateSet, SearchRequest

Scores = Sequence[float | None]
"""The score of each text, higher is better. None for texts that the reranker did not score."""

Score = Callable[[str, Sequence[str], int], Awaitable[Scores]]
"""``Reranker.scores``, of a reranker in this process or in another one."""

Search = Callable[[SearchRequest], AsyncGenerator[CandidateSet, None]]
"""A search in stages."""

Reranking = Callable[[SearchRequest, Search], AsyncGenerator[CandidateSet, None]]
"""Yields the stages of a search, and those of reranking if the configuration and the request say so.

Raises what the search raises, and InvalidRequest if the request needs a reranker and there is none.
"""


class Reranker(Protocol):
    """Scores how well texts answer a query. Calls do not block the event loop, and may run at once."""

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the score of each text, at least those of the ``wanted`` best ones. Raises RerankFailed."""

    async def close(self) -> None:
        """Free the model or the connections."""
