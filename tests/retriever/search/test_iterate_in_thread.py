"""A search runs ahead of its consumer and ends when the consumer closes it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from retriever_cases import TENANT, put_lines, running
from varied import varied

from protocol.errors import Unavailable
from protocol.retrieval import SearchRequest
from retriever.search.stages import iterate_in_thread
from retriever.settings import IndexSettings


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Work:
    """Three items. The item with the number ``gated`` waits for ``gate``."""

    def __init__(self, gated, failing=False):
        self.gated = gated
        self.failing = failing
        self.gate = threading.Event()
        self.at_gate = threading.Event()
        self.ended = threading.Event()
        self.begun = []

    def __call__(self):
        try:
            for number in range(3):
                self.begun.append(number)
                if number == self.gated:
                    self.at_gate.set()
                    assert self.gate.wait(20)
                yield number
            if self.failing:
                raise Unavailable("no more")
        finally:
            self.ended.set()


async def until(event):
    assert await asyncio.to_thread(event.wait, 20)


async def test_work_does_not_wait_for_the_consumer(pool):
    work = Work(gated=None)
    items = iterate_in_thread(pool, work())
    assert await anext(items) == 0
    await until(work.ended)
    assert [item async for item in items] == [1, 2]


async def test_item_is_yielded_before_the_next_is_ready(pool):
    work = Work(gated=1)
    items = iterate_in_thread(pool, work())
    assert await anext(items) == 0
    work.gate.set()
    assert [item async for item in items] == [1, 2]


async def test_closing_ends_the_work_after_the_current_item(pool):
    work = Work(gated=1)
    items = iterate_in_thread(pool, work())
    assert await anext(items) == 0
    await until(work.at_gate)
    await items.aclose()
    work.gate.set()
    await until(work.ended)
    assert work.begun == [0, 1]
    assert await asyncio.get_running_loop().run_in_executor(pool, lambda: "free") == "free"


async def test_cancelled_work_that_waits_for_a_thread_never_starts(pool):
    first, second = Work(gated=0), Work(gated=None)
    waiting = [asyncio.ensure_future(anext(iterate_in_thread(pool, work()))) for work in (first, second)]
    await until(first.at_gate)
    waiting[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    first.gate.set()
    assert await waiting[0] == 0
    assert await asyncio.get_running_loop().run_in_executor(pool, lambda: second.begun) == []


async def test_error_is_raised_after_the_items_before_it(pool):
    items = iterate_in_thread(pool, Work(gated=None, failing=True)())
    assert [await anext(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Unavailable, match="no more"):
        await anext(items)


STAGED = varied(IndexSettings, kind="flat", stage_ms=1e-6, stages=4)
REQUEST = SearchRequest(TENANT, "default", "tale 7", 5)


async def put_tales(retriever):
    await put_lines(retriever, [{"id": f"d{number}", "text": f"tale {number}"} for number in range(200)])
    (whole,) = [candidates async for candidates in retriever.search(REQUEST)]
    return whole


async def test_staged_search_ends_like_a_search_in_one_stage(tmp_path):
    async with running(tmp_path, index=STAGED) as retriever:
        whole = await put_tales(retriever)
        staged = [candidates async for candidates in retriever.search(REQUEST)]
        assert [(each.stage, each.of, each.final) for each in staged] == [(n, 4, n == 4) for n in range(1, 5)]
        assert (staged[-1].docs, staged[-1].scores) == (whole.docs, whole.scores)
        assert staged[0].elapsed_ms <= staged[-1].elapsed_ms


async def test_repeated_search_has_one_sequence_of_stages(tmp_path):
    async with running(tmp_path, index=STAGED) as retriever:
        whole = await put_tales(retriever)
        # The index keeps the deleted chunk and still proposes it.
        retriever._ingestion.intake._committer.remove_from_indexes = lambda *_: None
        await retriever.delete_document(TENANT, "default", whole.docs[0].document_id)
        staged = [candidates async for candidates in retriever.search(REQUEST)]
        assert [(each.stage, each.of, each.final) for each in staged] == [(n, 4, n == 4) for n in range(1, 5)]
        assert staged[-1].docs[:4] == whole.docs[1:]
        assert len(staged[-1].docs) == 5
