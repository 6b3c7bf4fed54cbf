"""Draws inputs from hypothesis strategies, repeatably by seed, in a process beside the one that sends them."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import ClassVar, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from ragtree_lab.fuzz.requests import Drawn, Input

Strategies = Mapping[str, SearchStrategy[Input]]
_BATCH = 100
_QUIET = list(HealthCheck)


class _Recipe(NamedTuple):
    """How the drawing process makes its strategies."""

    make: Callable[..., Strategies]
    arguments: tuple[object, ...]


class _Process:
    """What the drawing process keeps between two batches."""

    strategies: ClassVar[Strategies] = {}


def _prepare(recipe: _Recipe) -> None:
    _Process.strategies = recipe.make(*recipe.arguments)


def _batch(source: str, seed: int, batch: int) -> list[Input]:
    return examples(_Process.strategies[source], f"{seed}/{source}/{batch}", _BATCH)


def examples(strategy: SearchStrategy[Input], seed: str, most: int) -> list[Input]:
    """Return at most ``most`` different inputs. Equal seeds give equal inputs."""
    drawn: list[Input] = []

    @hypothesis.seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big"))
    @hypothesis.settings(
        max_examples=most, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=_QUIET
    )
    @hypothesis.given(strategy)
    def collect(given: Input) -> None:
        drawn.append(given)

    collect()
    return drawn[:most]


class Drawing:
    """A process that draws inputs. ``make(*arguments)`` returns the strategies by the names of their sources.

    Both must be picklable. The first batch of each of the ``sources`` is drawn at once. Always call ``close``.
    """

    def __init__(self, seed: int, sources: Iterable[str], make: Callable[..., Strategies], *arguments: object) -> None:
        self._seed = seed
        # A new process, because a forked one would hold the sockets and threads of this one.
        spawned = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawned, initializer=_prepare, initargs=(_Recipe(make, arguments),))
        self._first = {source: self._begin(source, 0) for source in sources}

    async def ready(self) -> None:
        """Wait until each source has its first inputs: none is then held up by the others."""
        await asyncio.gather(*(asyncio.wrap_future(batch) for batch in self._first.values()))

    async def inputs(self, source: str) -> AsyncGenerator[Drawn]:
        """Yield the source's inputs without an end. The next batch is drawn while the last one is used."""
        number = batch = 0
        ahead = self._first[source]
        while True:
            drawn = await asyncio.wrap_future(ahead)
            batch += 1
            ahead = self._begin(source, batch)
            for each in drawn:
                yield Drawn(source=source, seed=self._seed, number=number, input=each)
                number += 1

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, source: str, batch: int) -> "Future[list[Input]]":
        return self._pool.submit(_batch, source, self._seed, batch)
