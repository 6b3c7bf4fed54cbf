"""Tasks that outlive the requests that started them."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Keeps references to running tasks, and waits for them at shutdown.

    A cancelled request cannot await a remote call in its ``finally``: the call never finishes. Cleanup of this kind
    runs here instead. Each gateway has one instance.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` to completion, even if the caller is cancelled."""
        # The event loop only holds weak references to tasks.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Wait for the running tasks, for at most ``timeout_s`` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
