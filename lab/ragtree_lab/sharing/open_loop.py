"""Queries that arrive on a schedule, whatever became of earlier ones."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import structlog

from examine.measuring.engines import Generation
from protocol.errors import RagtreeError

log = structlog.get_logger(__name__)


class Arrived(NamedTuple):
    """An answered query: the times to its first token and its end since it was due.

    ``first_token_at`` is in ``time.monotonic()``.
    """

    ttft_ms: float
    latency_ms: float
    first_token_at: float
    answer: Generation


Ask = Callable[[], Awaitable[Generation]]
"""Asks one query."""


def never(_: Arrived) -> bool:
    """Whatever the answer, more queries are asked."""
    return False


async def arriving(
    queries: Iterable[Ask], rate: float, enough: Callable[[Arrived], bool] = never
) -> list[Arrived | None]:
    """Ask ``rate`` queries a second, at equal intervals, and wait for all that were asked.

    Returns what came of each, in order; None for an error, which is logged. No more are asked once one is ``enough``.
    """
    done = asyncio.Event()
    tasks: list[asyncio.Task[Arrived | None]] = []

    async def one(ask: Ask, due: float) -> Arrived | None:
        late_s = time.monotonic() - due
        try:
            answer = await ask()
        except RagtreeError as error:
            log.warning("a query was not answered", error=str(error))
            return None
        ttft_s = late_s + answer.ttft_ms / 1000
        arrived = Arrived(ttft_s * 1000, (time.monotonic() - due) * 1000, due + ttft_s, answer)
        if enough(arrived):
            done.set()
        return arrived

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, ask in enumerate(queries):
            due = began + number / rate
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), max(0.0, due - time.monotonic()))
            if done.is_set():
                break
            tasks.append(group.create_task(one(ask, due)))
    return [task.result() for task in tasks]
