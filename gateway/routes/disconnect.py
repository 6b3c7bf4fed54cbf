"""Detects clients that disconnect before their response starts."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.query.runs import Running

T = TypeVar("T")


async def while_connected(request: Request, run: Running, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work`` on ``run``. Raises ClientDisconnect if the client disconnects first.

    Cancels the run on any error, on cancellation, and on a disconnect. The server does not cancel the handler of a
    disconnected client, so this waits for the ASGI message, which is cheaper than polling ``is_disconnected()``.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    except BaseException:
        run.cancel()
        raise
    finally:
        working.cancel()
        leaving.cancel()
        # The response reads the same channel: two readers would take messages from each other.
        await asyncio.wait({leaving})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
