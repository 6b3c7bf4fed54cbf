"""Machines whose engines read each other's KV: each has folders and processes of its own."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from cachectl.runtime.executor import LiveEngine
from examine.measuring.engines import Generation
from protocol.generation import Sampling
from protocol.plans import PrefillPlan
from ragtree_lab.measuring.engines import ComparedEngines


class TimedEngine(LiveEngine, Protocol):
    """An engine in a process of its own."""

    async def generate(self, plan: PrefillPlan, sampling: Sampling) -> Generation:
        """Run a plan to its end, timed in the engine's process: no message between processes is in the times.

        Raises what the engine raises.
        """


class Machines(Protocol):
    """Two machines, with the numbers 0 and 1. Engines on one share its processors with those on the other."""

    def engine(
        self,
        number: int,
        maker: ComparedEngines,
        instance: str,
        at_work: int = 1,
        **kv: Any,  # noqa: ANN401
    ) -> AbstractAsyncContextManager[TimedEngine]:
        """Run an engine on a machine, with host memory and a disk tier of its own; ``kv`` overrides ``KvSettings``.

        ``at_work`` engines work at the same time. Raises what the engine raises.
        """


@asynccontextmanager
async def engines_on(
    machines: Machines,
    maker: ComparedEngines,
    names: Sequence[str],
    at_work: int = 1,
    **kv: Any,  # noqa: ANN401
) -> AsyncGenerator[Mapping[str, TimedEngine]]:
    """Run one engine for each name, the first one on the first machine. They start at the same time."""
    async with AsyncExitStack() as running:
        # Each one ends in order, also if another one does not start.
        started = await asyncio.gather(
            *(
                running.enter_async_context(machines.engine(number, maker, name, at_work, **kv))
                for number, name in enumerate(names)
            ),
            return_exceptions=True,
        )
        for engine in started:
            if isinstance(engine, BaseException):
                raise engine
        yield dict(zip(names, [engine for engine in started if not isinstance(engine, BaseException)], strict=True))
