"""The rerank stage: the last stage of a search, left out for a while after its reranker has failed."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import structlog
from msgspec.structs import replace

from protocol.errors import RagtreeError, RerankFailed
from protocol.retrieval import CandidateSet, RerankFailure, Reranking, SearchKind, SearchRequest
from retriever.reranking.base import Score, Scores, Search
from retriever.search.stages import first
from retriever.settings import RerankStageSettings

_log = structlog.get_logger(__name__)

_LASTING = {RerankFailure.TIMEOUT, RerankFailure.UNAVAILABLE}
"""Failures that the next request is likely to meet, too."""


class Circuit:
    """Lets every call through until one fails. From then on, it lets one through every ``pause_s`` seconds.

    The first of these that succeeds ends the pause. ``clock`` returns monotonic seconds.
    """

    def __init__(self, pause_s: float, clock: Callable[[], float]) -> None:
        self._pause_s = pause_s
        self._clock = clock
        self._next_at: float | None = None

    def lets_through(self) -> bool:
        """Return whether a call may be made now. If the circuit is broken, others have to wait for its result."""
        if self._next_at is None:
            return True
        if self._clock() < self._next_at:
            return False
        self._next_at = self._clock() + self._pause_s
        return True

    def succeeded(self) -> None:
        """Record that a call has succeeded."""
        self._next_at = None

    def failed(self) -> None:
        """Record that a call has failed, which breaks the circuit."""
        self._next_at = self._clock() + self._pause_s


class RerankStage:
    """Searches for more candidates than are wanted, and lets a reranker choose the best.

    The search's own sets are all provisional. The last set is there while the reranker works, so that a speculation
    may begin on it. If reranking fails, the final set is that one, and says why (``CandidateSet.reranking``): a search
    never fails because of its reranker. ``clock`` returns monotonic seconds.
    """

    def __init__(
        self, score: Score, settings: RerankStageSettings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._score = score
        self._settings = settings
        self._clock = clock
        self._circuit = Circuit(settings.pause_s, clock)
        self._works = True

    def stages(self, request: SearchRequest, search: Search) -> AsyncGenerator[CandidateSet, None]:
        """Yield the search's stages and, unless the request is without reranking, one more."""
        return search(request) if request.rerank is False else self._stages(request, search)

    async def _stages(self, request: SearchRequest, search: Search) -> AsyncGenerator[CandidateSet, None]:
        asked = replace(request, rerank=False, candidates=self._settings.candidates)
        found: CandidateSet | None = None
        async with aclosing(search(asked)) as stages:
            async for found in stages:
                if not found.final:
                    yield _best(found, request.top_k)
        if found is None or not found.final:
            return
        if not found.docs:
            yield replace(found, stage=found.of + 1, of=found.of + 1)
            return
        # It runs while the caller handles the provisional set.
        reranking = asyncio.create_task(self._reranked(request, found))
        try:
            yield _best(found, request.top_k)
            yield await reranking
        finally:
            reranking.cancel()

    async def _reranked(self, request: SearchRequest, found: CandidateSet) -> CandidateSet:
        """The final set: the best candidates as the reranker orders them or, if it fails, as the search does."""
        began = self._clock()
        failure: RerankFailure | None = None
        best = found
        try:
            texts = [chunk.text for chunk in found.docs]
            best = _ordered(found, await self._scores(request.in_context, texts, request.top_k))
        except RerankFailed as error:
            failure = error.failure
        elapsed_ms = 1000 * (self._clock() - began)
        return replace(
            _best(best, request.top_k),
            stage=found.of + 1,
            final=True,
            elapsed_ms=found.elapsed_ms + elapsed_ms,
            reranking=Reranking("failed" if failure else "done", failure, len(found.docs), elapsed_ms),
        )

    async def _scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the reranker's valid scores, one for each text. Raises RerankFailed."""
        if not self._circuit.lets_through():
            raise RerankFailed("the reranker has just failed", failure=RerankFailure.PAUSED)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                scores = _checked(await self._score(query, texts, wanted), len(texts))
        except Exception as error:
            raise self._failed(error) from None
        self._circuit.succeeded()
        if not self._works:
            self._works = True
            _log.info("reranker_works_again")
        return scores

    def _failed(self, error: Exception) -> RerankFailed:
        """Record that a call has failed. Return what its failure means."""
        if isinstance(error, TimeoutError):
            limit_s = self._settings.timeout_s
            error = RerankFailed(f"no answer within {limit_s:g} s", failure=RerankFailure.TIMEOUT)
        elif not isinstance(error, RerankFailed):
            # The shard that was asked is not there, or the reranker has a defect.
            if not isinstance(error, RagtreeError):
                _log.exception("reranker_defect")
            error = RerankFailed(str(error))
        if error.failure in _LASTING:
            self._circuit.failed()
        if self._works:
            self._works = False
            _log.warning("reranker_fails", failure=error.failure.value, reason=error.message)
        return error


def _best(found: CandidateSet, top_k: int) -> CandidateSet:
    """The first ``top_k`` documents of a set, as a provisional one with another stage after it."""
    return replace(first(found, top_k), of=found.of + 1, final=False)


def _ordered(found: CandidateSet, scores: Scores) -> CandidateSet:
    """The set in the order of these scores. Documents of equal scores, and those without one, keep their order."""
    lowest = min(score for score in scores if score is not None)
    order = sorted(range(len(scores)), key=lambda place: (scores[place] is None, -(scores[place] or 0.0)))
    dense, sparse = found.ranking(SearchKind.DENSE), found.ranking(SearchKind.SPARSE)
    given = [lowest if score is None else score for score in scores]
    return replace(
        found,
        docs=tuple(found.docs[place] for place in order),
        scores=tuple(given[place] for place in order),
        dense_scores=tuple(dense[place] for place in order),
        sparse_scores=tuple(sparse[place] for place in order),
    )


def _checked(scores: Scores, count: int) -> Scores:
    given = [score for score in scores if score is not None]
    if len(scores) != count or not given:
        raise RerankFailed(f"{len(given)} scores for {count} chunks", failure=RerankFailure.INVALID)
    if not all(map(math.isfinite, given)):
        raise RerankFailed("a score is not a number", failure=RerankFailure.INVALID)
    return scores
