import asyncio

import pytest
from structlog.testing import capture_logs

from protocol.errors import Unavailable
from protocol.repeating import repeated


class Work:
    """Work that raises the given errors, one per run, and signals a number of runs."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.times = 0
        self._done = asyncio.Event()

    async def __call__(self) -> None:
        self.times += 1
        self._done.set()
        if self._errors:
            raise self._errors.pop(0)

    async def done(self, times: int) -> None:
        async with asyncio.timeout(5):
            while self.times < times:
                self._done.clear()
                await self._done.wait()


async def test_work_runs_after_each_pause_and_ends_with_the_context():
    work = Work()
    async with repeated(work, 0.001):
        assert work.times == 0
        await work.done(3)
    ended = work.times
    await asyncio.sleep(0.02)
    assert work.times == ended


@pytest.mark.parametrize(("error", "traceback"), [(Unavailable("away"), False), (KeyError("defect"), True)])
async def test_failure_is_logged_and_work_is_tried_again(error, traceback):
    work = Work(error)
    with capture_logs() as logs:
        async with repeated(work, 0.001):
            await work.done(2)
    assert [(entry["event"], bool(entry["exc_info"])) for entry in logs] == [("repeated_work_failed", traceback)]


async def test_running_work_is_cancelled_when_the_context_ends():
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with repeated(work, 0.001):
        await begun.wait()
    assert cancelled.is_set()
