"""Noticing that a client has left while its response has not begun."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.query.runs import QueryRun

T = TypeVar("T")


async def while_connected(request: Request, run: QueryRun, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work`` on ``run``; cancels the run and raises ClientDisconnect if the client leaves before.

    The server does not cancel a handler whose client left, so this listens for the message itself, which costs
    nothing while waiting; polling ``is_disconnected()`` would either come late or cost. Any other failure and any
    cancellation of the caller cancel the run as well.
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
        # Two readers of one receive channel would steal from each other: gone before the response listens.
        await asyncio.wait({leaving})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
