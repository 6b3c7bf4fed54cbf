"""The stage of reranking, over scripted searches and rerankers."""

import asyncio
import math
import pickle
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from sharded_cases import REQUEST, found, names
from structlog.testing import capture_logs

from protocol.errors import InvalidRequest, RerankFailed, RetrieverNotReady
from protocol.retrieval import CandidateSet, RerankFailure, SearchKind, SearchRequest
from retriever.reranking.factory import NoReranker, not_reranked
from retriever.reranking.stage import RerankStage
from retriever.settings import RerankStageSettings

FIRST = found(1, 2, {"a": 0.9, "b": 0.8})
LAST = found(2, 2, {"a": 0.9, "b": 0.8, "c": 0.7, "d": 0.6, "e": 0.5})
ASKED = SearchRequest(REQUEST.tenant, REQUEST.collection, "which?", 3)


class Search:
    """Yields the same sets for every request."""

    def __init__(self, *sets: CandidateSet) -> None:
        self.sets = sets or (FIRST, LAST)
        self.requests: list[SearchRequest] = []

    async def __call__(self, request: SearchRequest) -> AsyncIterator[CandidateSet]:
        self.requests.append(request)
        for each in self.sets:
            yield each


class Scores:
    """Answers with ``given``: scores, an error, or what waits for ever."""

    def __init__(self, *given: float | None) -> None:
        self.given: Sequence[float | None] | Exception | None = given or (1.0, 2.0, 3.0, 4.0, 5.0)
        self.calls: list[tuple[str, list[str], int]] = []
        self.asked = asyncio.Event()
        self.cancelled = False

    async def __call__(self, query: str, texts: Sequence[str], wanted: int) -> Sequence[float | None]:
        self.calls.append((query, list(texts), wanted))
        self.asked.set()
        if isinstance(self.given, Exception):
            raise self.given
        if self.given is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        return self.given


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def stage(scores: Callable, clock: Callable[[], float] | None = None, **changes) -> RerankStage:
    settings = RerankStageSettings(**{"candidates": 5, "timeout_s": 20.0, **changes})
    return RerankStage(scores, settings, clock or Clock())


async def sets_of(reranking: RerankStage, search: Search, request: SearchRequest = ASKED) -> list[CandidateSet]:
    async with asyncio.timeout(20):
        return [each async for each in reranking.stages(request, search)]


async def failure_of(reranking: RerankStage) -> RerankFailure | None:
    *_, last = await sets_of(reranking, Search())
    return last.reranking.reason


async def test_reranking_is_the_last_stage_and_only_it_is_final():
    scores, search = Scores(), Search()
    sets = await sets_of(stage(scores), search)
    assert [(each.stage, each.of, each.final) for each in sets] == [(1, 3, False), (2, 3, False), (3, 3, True)]
    assert [names(each) for each in sets] == [["a", "b"], ["a", "b", "c"], ["e", "d", "c"]]
    assert [each.reranked for each in sets] == [False, False, True]
    last = sets[-1]
    assert last.scores == (5.0, 4.0, 3.0)
    assert last.ranking(SearchKind.DENSE) == (0.5, 0.6, 0.7)
    assert last.ranking(SearchKind.SPARSE) == (None, None, None)
    assert (last.reranking.status, last.reranking.reason, last.reranking.candidates) == ("done", None, 5)
    assert scores.calls == [("which?", ["a", "b", "c", "d", "e"], 3)]
    (asked,) = search.requests
    assert (asked.top_k, asked.candidates, asked.shown, asked.rerank) == (3, 5, 5, False)


async def test_time_of_reranking_counts():
    clock = Clock()

    async def slow(*_):
        clock.now += 0.25
        return [1.0] * 5

    last = (await sets_of(stage(slow, clock), Search()))[-1]
    assert last.reranking.elapsed_ms == pytest.approx(250)
    assert last.elapsed_ms == pytest.approx(LAST.elapsed_ms + 250)


async def test_reranker_works_while_the_provisional_set_is_handled():
    scores = Scores()
    stages = stage(scores).stages(ASKED, Search(LAST))
    async with asyncio.timeout(20):
        provisional = await anext(stages)
        assert (names(provisional), provisional.final) == (["a", "b", "c"], False)
        # Nobody asks for the next set.
        await scores.asked.wait()
        assert (await anext(stages)).final
        await stages.aclose()


async def test_closing_the_search_cancels_the_reranker():
    scores = Scores()
    scores.given = None
    stages = stage(scores).stages(ASKED, Search(LAST))
    async with asyncio.timeout(20):
        await anext(stages)
        await scores.asked.wait()
        await stages.aclose()
        while not scores.cancelled:
            await asyncio.sleep(0)


async def test_documents_without_a_score_follow_in_the_order_of_the_search():
    last = (await sets_of(stage(Scores(None, -2.0, None, 7.0, None)), Search(), ASKED))[-1]
    assert names(last) == ["d", "b", "a"]
    assert last.scores == (7.0, -2.0, -2.0)


async def test_equal_scores_keep_the_order_of_the_search():
    assert names((await sets_of(stage(Scores(1, 1, 2, 1, 1)), Search()))[-1]) == ["c", "a", "b"]


@pytest.mark.parametrize(
    "given",
    [(math.nan, 1, 1, 1, 1), (math.inf, 1, 1, 1, 1), (1.0, 2.0), (None,) * 5, (1.0,) * 6],
    ids=["nan", "infinite", "short", "none", "long"],
)
async def test_invalid_scores_leave_the_results_as_they_were(given):
    last = (await sets_of(stage(Scores(*given)), Search()))[-1]
    assert (names(last), last.scores, last.final) == (["a", "b", "c"], (0.9, 0.8, 0.7), True)
    assert (last.reranking.status, last.reranking.reason) == ("failed", RerankFailure.INVALID)
    assert last.ranking(SearchKind.DENSE) == last.scores


@pytest.mark.parametrize("failure", [failure for failure in RerankFailure if failure is not RerankFailure.PAUSED])
async def test_failed_reranker_leaves_the_results_as_they_were(failure):
    scores = Scores()
    scores.given = RerankFailed("no", failure=failure)
    sets = await sets_of(stage(scores), Search())
    assert [(each.stage, each.of, each.final) for each in sets] == [(1, 3, False), (2, 3, False), (3, 3, True)]
    assert names(sets[-1]) == ["a", "b", "c"]
    assert sets[-1].reranking.reason is failure


@pytest.mark.parametrize(("error", "defects"), [(RetrieverNotReady("shard 1 is gone"), 0), (KeyError("a defect"), 1)])
async def test_lost_shards_and_defects_count_as_unavailable(error, defects):
    scores = Scores()
    scores.given = error
    with capture_logs() as logs:
        assert await failure_of(stage(scores)) is RerankFailure.UNAVAILABLE
    assert [entry["event"] for entry in logs].count("reranker_defect") == defects


@pytest.mark.parametrize("failure", list(RerankFailure))
def test_errors_keep_their_reason_between_processes(failure):
    error = pickle.loads(pickle.dumps(RerankFailed("no", failure=failure)))
    assert (error.message, error.param, error.failure) == ("no", None, failure)


async def test_slow_reranker_is_not_waited_for():
    scores = Scores()
    scores.given = None
    assert await failure_of(stage(scores, timeout_s=0.01)) is RerankFailure.TIMEOUT
    assert scores.cancelled


@pytest.mark.parametrize("failure", [RerankFailure.TIMEOUT, RerankFailure.UNAVAILABLE])
async def test_reranker_that_does_not_answer_is_left_alone_for_a_while(failure):
    clock, scores = Clock(), Scores()
    reranking = stage(scores, clock)
    good, scores.given = scores.given, RerankFailed("no", failure=failure)
    assert await failure_of(reranking) is failure
    clock.now += 4.9
    assert await failure_of(reranking) is RerankFailure.PAUSED
    assert len(scores.calls) == 1
    clock.now += 0.2
    assert await failure_of(reranking) is failure
    assert await failure_of(reranking) is RerankFailure.PAUSED
    scores.given = good
    clock.now += 5.1
    assert await failure_of(reranking) is None
    assert await failure_of(reranking) is None
    assert len(scores.calls) == 4


async def test_one_query_at_a_time_tries_again():
    clock, scores = Clock(), Scores()
    reranking = stage(scores, clock)
    good, scores.given = scores.given, RerankFailed("no")
    await failure_of(reranking)
    scores.given = None
    scores.asked.clear()
    clock.now += 5.1
    trying = asyncio.create_task(failure_of(reranking))
    async with asyncio.timeout(20):
        await scores.asked.wait()
        assert await failure_of(reranking) is RerankFailure.PAUSED
    trying.cancel()
    # One that never ended does not keep others from trying.
    scores.given = good
    clock.now += 5.1
    assert await failure_of(reranking) is None


@pytest.mark.parametrize("failure", [RerankFailure.REFUSED, RerankFailure.INVALID])
async def test_an_answer_that_is_of_no_use_does_not_keep_others_from_asking(failure):
    scores = Scores()
    reranking = stage(scores)
    good, scores.given = scores.given, RerankFailed("no", failure=failure)
    assert await failure_of(reranking) is failure
    scores.given = good
    assert await failure_of(reranking) is None


async def test_changes_are_logged_and_nothing_else():
    clock, scores = Clock(), Scores()
    reranking = stage(scores, clock)
    good, bad = scores.given, RerankFailed("no route")
    with capture_logs() as logs:
        for given in (good, bad, bad, bad, good, good):
            scores.given = given
            clock.now += 6
            await failure_of(reranking)
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [
        ("warning", "reranker_fails"),
        ("info", "reranker_works_again"),
    ]
    assert (logs[0]["failure"], logs[0]["reason"]) == ("unavailable", "no route")


async def test_search_without_results_is_final_without_reranking():
    scores = Scores()
    (only,) = await sets_of(stage(scores), Search(found(1, 1)))
    assert (only.final, only.stage, only.of, only.docs, only.reranking) == (True, 2, 2, (), None)
    assert not scores.calls


async def test_request_without_reranking_gets_the_search_as_it_is():
    scores, search = Scores(), Search()
    request = SearchRequest(REQUEST.tenant, REQUEST.collection, "which?", 3, rerank=False)
    assert await sets_of(stage(scores), search, request) == [FIRST, LAST]
    assert search.requests == [request]
    assert not scores.calls


async def test_errors_of_the_search_are_its_own():
    async def broken(_):
        yield FIRST
        raise RetrieverNotReady("gone")

    with pytest.raises(RetrieverNotReady):
        await sets_of(stage(Scores()), broken)


async def test_without_a_reranker_a_request_cannot_ask_for_it():
    search = Search()
    assert [each async for each in not_reranked(ASKED, search)] == [FIRST, LAST]
    with pytest.raises(InvalidRequest) as refused:
        not_reranked(SearchRequest("t", "c", "q", 3, rerank=True), search)
    assert refused.value.param == "rerank"
    with pytest.raises(InvalidRequest):
        await NoReranker().scores("q", ["text"], 1)
    await NoReranker().close()
