"""Level 1: paged blocks in each layout, without an engine."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.kv import Pages
from ragtree_lab.gpu_proof.block_cache import BlockCache, CacheShape
from ragtree_lab.gpu_proof.process import Task

_SMALL = CacheShape(3, 24, 2, 16, 64)
_LARGE = CacheShape(32, 96, 8, 16, 128)
"""A 7B model's blocks of 2 MiB."""

_ROUNDS = 3
_TIMED = 5
_SLOW_PRODUCTS = 60
_LEAST_SHARE = 0.6
"""The least share of a plain copy's bandwidth for loads on a GPU, from pinned memory into adjacent layers."""


class BlockChecks:
    """Checks that copies of blocks are right while the device computes, and how fast they are."""

    def __init__(self, task: Task) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._shape = _SMALL if task.group.settings["small"] else _LARGE
        self._task = task
        self._matrix = torch.ones([256 if self._device.type == "cpu" else 8192] * 2, device=self._device)
        self._stamps = count(1)
        self._random = np.random.default_rng(0)

    async def usable(self) -> bool:
        """Never: after an error of its own, CUDA fails whatever follows."""
        return False

    async def close(self) -> None:
        """Do nothing: no check leaves anything open."""

    async def save_and_load(self, layout: str) -> str:
        """Save some blocks and load others while the device computes and fills further ones. Every byte is right."""
        cache = self._cache(layout)
        third = self._shape.blocks // 3
        saved, loaded, busy = range(third), range(third, 2 * third), range(2 * third, 2 * third + 4)
        alone = range(2 * third + 4, self._shape.blocks)
        began = time.perf_counter()
        for _ in range(_ROUNDS):
            before = cache.pages([*saved, *alone])
            source, target = self._pages(range(third)), self._pages(range(third, 2 * third))
            pages = self._bytes(third, cache.blocks.page_bytes)
            cache.put("loaded", pages, source)
            fence = cache.blocks.fence()
            with ThreadPoolExecutor(2, initializer=cache.blocks.enter_thread) as threads:
                under_way = [
                    threads.submit(_behind, fence, cache.save, "saved", saved, target),
                    threads.submit(_behind, fence, cache.load, "loaded", loaded, source),
                ]
                self._compute_until_done(under_way, cache, busy)
            _must_equal(cache.saved("saved", target), before[:third], "pages that were saved")
            _must_equal(cache.pages(loaded), pages, "blocks that were loaded")
            _must_equal(cache.pages([*saved, *alone]), before, "blocks that nobody wrote to")
        seconds = time.perf_counter() - began
        cache.close()
        return f"{_ROUNDS} x {2 * third} pages in {seconds:.2f} s; copies a page: {cache.blocks.copies_per_page}"

    async def fence(self, layout: str) -> str:
        """Copies behind a fence come after the device's earlier work on the same blocks; without one, they do not."""
        cache = self._cache(layout)
        waits, overtakes = self._race(cache, fenced=True), not self._race(cache, fenced=False)
        cache.close()
        if not waits:
            raise ValueError("a copy overtook work that was submitted before its fence")
        if self._device.type == "cpu":
            return "a CPU needs none"
        if not overtakes:
            raise ValueError("even without a fence, no copy overtook the device's work: nothing was tested")
        return "without it, copies overtake the device's work"

    async def bandwidth(self, layout: str) -> str:
        """Bandwidths of loads and saves, against memory that is not pinned and against a plain copy."""
        cache = self._cache(layout)
        blocks = range(self._shape.blocks)
        pages = self._bytes(len(blocks), cache.blocks.page_bytes)
        source = self._pages(blocks)
        cache.put("timed", pages, source)
        pinned = cache.is_pinned("timed", source)

        def load() -> None:
            cache.load("timed", blocks, source)

        def load_unpinned() -> None:
            cache.blocks.write(pages, blocks, blocks)
            cache.blocks.finish()

        def save() -> None:
            target = self._pages(range(len(blocks), 2 * len(blocks)))
            cache.save("back", blocks, target)
            cache.arena.drop("back", target)

        with ThreadPoolExecutor(1, initializer=cache.blocks.enter_thread) as thread:
            seconds = [thread.submit(_best_s, run).result() for run in (load, load_unpinned, save)]
        seconds.append(_best_s(self._plain_copy(pages)))
        cache.close()
        loads, unpinned, saves, plain = (pages.nbytes / best / 1e9 for best in seconds)
        figure = f"load {loads:.1f}, not pinned {unpinned:.1f}, save {saves:.1f}, plain copy {plain:.1f} GB/s"
        if self._device.type == "cuda" and not pinned:
            raise ValueError(f"CUDA did not register the arena: {figure}")
        if self._device.type == "cuda" and layout == "BLHNC" and loads < _LEAST_SHARE * plain:
            raise ValueError(f"loads are slower than {_LEAST_SHARE} of a plain copy: {figure}")
        return figure

    def _race(self, cache: BlockCache, fenced: bool) -> bool:
        """Whether copies come after slow work on the same blocks: a save of its result, and a load over it."""
        saved, loaded = 1, 2
        page = self._bytes(1, cache.blocks.page_bytes)
        source, target = self._pages(range(1)), self._pages(range(1, 2))
        cache.put("loaded", page, source)
        cache.fill(saved, 0.0)
        cache.fill(loaded, 0.0)
        self._wait()
        product = self._matrix
        for _ in range(_SLOW_PRODUCTS if self._device.type == "cuda" else 1):
            product = product @ self._matrix
        cache.fill(saved, 1.0)
        cache.fill(loaded, 2.0)
        fence = cache.blocks.fence() if fenced else _nothing

        def copy() -> None:
            fence()
            cache.save("saved", range(saved, saved + 1), target)
            cache.load("loaded", range(loaded, loaded + 1), source)

        with ThreadPoolExecutor(1, initializer=cache.blocks.enter_thread) as thread:
            thread.submit(copy).result()
        self._wait()
        ones = torch.ones(cache.blocks.page_bytes // 2, dtype=torch.bfloat16).view(torch.uint8).numpy()
        first = bool((cache.saved("saved", target) == ones).all())
        return first and bool((cache.pages([loaded]) == page).all())

    def _compute_until_done(self, copies: "Sequence[Future[None]]", cache: BlockCache, busy: Sequence[int]) -> None:
        """Let the device work as an engine's steps do until copies are done, and at least once."""
        product = self._matrix
        while True:
            for block in busy:
                product = product @ self._matrix
                cache.fill(block, 3.0)
            self._wait()
            if all(copy.done() for copy in copies):
                break
        for copy in copies:
            copy.result()

    def _plain_copy(self, pages: NDArray[np.uint8]) -> Callable[[], None]:
        source = torch.from_numpy(pages)
        if self._device.type == "cuda":
            source = source.pin_memory()
        target = torch.empty_like(source, device=self._device)

        def copy() -> None:
            target.copy_(source, non_blocking=True)
            self._wait()

        return copy

    def _cache(self, layout: str) -> BlockCache:
        return BlockCache(self._device, self._shape, layout, self._task)

    def _pages(self, numbers: Sequence[int]) -> Pages:
        return Pages(tuple(numbers), next(self._stamps))

    def _bytes(self, rows: int, size: int) -> NDArray[np.uint8]:
        return self._random.integers(0, 256, (rows, size), np.uint8)

    def _wait(self) -> None:
        """Wait for the device's work, except for that of other threads."""
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()


def _behind(fence: Callable[[], None], copy: Callable[..., None], *arguments: object) -> None:
    fence()
    copy(*arguments)


def _nothing() -> None:
    """Do not wait."""


def _must_equal(found: NDArray[np.uint8], expected: NDArray[np.uint8], what: str) -> None:
    wrong = (found != expected).any(axis=1)
    if wrong.any():
        raise ValueError(f"{int(wrong.sum())} of {len(wrong)} {what} are wrong")


def _best_s(run: Callable[[], None]) -> float:
    """Seconds of the fastest of several runs. The first one warms up."""
    best = float("inf")
    for number in range(_TIMED + 1):
        began = time.perf_counter()
        run()
        if number:
            best = min(best, time.perf_counter() - began)
    return best
