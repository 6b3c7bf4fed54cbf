"""Searches in stages: how the blocking stages of a searcher reach the event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Executor
from contextlib import closing
from typing import TypeVar

from msgspec.structs import replace

from protocol.retrieval import CandidateSet

T = TypeVar("T")


def first(found: CandidateSet, count: int) -> CandidateSet:
    """Return a set with its first ``count`` documents only."""
    return replace(
        found,
        docs=found.docs[:count],
        scores=found.scores[:count],
        dense_scores=found.dense_scores[:count],
        sparse_scores=found.sparse_scores[:count],
    )


async def iterate_in_thread(pool: Executor, work: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Yield the items of ``work``, which runs in a thread of ``pool`` and does not wait for the consumer.

    Closing the generator ends the work after its current item and frees the thread. An exception of the work is raised
    after the items before it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
    closed = threading.Event()

    def run() -> None:
        with closing(work):
            for item in work:
                if closed.is_set():
                    return
                loop.call_soon_threadsafe(done.put_nowait, (item,))

    thread = loop.run_in_executor(pool, run)
    # The loop runs this callback after it has queued every item.
    thread.add_done_callback(lambda _: done.put_nowait(None))
    try:
        while (item := await done.get()) is not None:
            yield item[0]
        await thread
    finally:
        closed.set()
        # If all threads of the pool are busy, the work may not have started.
        thread.cancel()
