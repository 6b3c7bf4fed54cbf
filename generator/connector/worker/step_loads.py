"""Loads out of host memory within the step that computes what follows them."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import structlog

from generator.connector.blocks.paged_blocks import PagedBlocks
from generator.connector.step_jobs import Load
from generator.tiers.arena import HeldPages, HostArena
from protocol.kv import Pages

log = structlog.get_logger(__name__)

_LONGEST_S = 0.05
"""How long the loads of one step may take: other requests wait for them, as for a prefill."""


class _Copying(NamedTuple):
    """Copies under way: what they read, and whether they are over."""

    held: list[HeldPages]
    is_over: Callable[[], bool]


class StepLoads:
    """Loads pages of the ``arena`` into ``blocks`` in the very step that computes with them.

    vLLM schedules the step as if the tokens were there, and has no sound way back (vLLM issue 49250). So the pages are
    held before they are promised to it: a copy that is not there is found then, and nobody writes to the pages until
    they are copied. What is left to fail is the copy itself. It ends the engine, because the step would compute with
    whatever is in the blocks. ``bytes_per_s`` is the rate of these copies.

    Both sides of the connector call it, on the engine's thread.
    """

    def __init__(self, blocks: PagedBlocks, arena: HostArena, bytes_per_s: float) -> None:
        self._blocks = blocks
        self._arena = arena
        self._most_pages = int(_LONGEST_S * bytes_per_s / blocks.page_bytes)
        # By request.
        self._held: dict[str, HeldPages] = {}
        # What a GPU still copies, the oldest first.
        self._copying: deque[_Copying] = deque()
        self._load_s: dict[str, float] = {}

    def has_room(self, pages: int) -> bool:
        """Whether the next step can load so many pages more."""
        return sum(held.count for held in self._held.values()) + pages <= self._most_pages

    @property
    def busy(self) -> bool:
        """Whether a GPU still copies, so that pages are held until a later step."""
        return bool(self._copying)

    def hold(self, request_id: str, copies: Mapping[str, Pages]) -> Sequence[str] | None:
        """Hold the copies, by node, that a request loads in the next step. Returns those that are not there.

        If any is not, none is held. What the request has held before is let go. Returns None if the operating system
        refuses the locks.
        """
        self._let_go(request_id)
        try:
            held = self._arena.hold(copies)
        except OSError as error:
            log.warning("kv_not_held", error=str(error), nodes=list(copies))
            return None
        if held.missing:
            held.let_go()
            log.warning("kv_not_loaded", error="not in the arena", nodes=held.missing, tier=self._arena.tier)
        else:
            self._held[request_id] = held
        return held.missing

    def keep(self, request_ids: Collection[str]) -> None:
        """Let go of what other requests hold: the next step does not load it."""
        for request_id in [request_id for request_id in self._held if request_id not in request_ids]:
            self._let_go(request_id)

    def load(self, loads: Sequence[Load]) -> None:
        """Copy what the step loads; the engine computes once it is there. Lets go of what earlier steps have copied."""
        while self._copying and self._copying[0].is_over():
            _let_go(self._copying.popleft().held)
        if not loads:
            return
        # The step before may still write to the blocks to be filled.
        self._blocks.fence()()
        loaded = [self._load(load) for load in loads]
        is_over = self._blocks.join()
        if is_over():
            _let_go(loaded)
        else:
            self._copying.append(_Copying(loaded, is_over))

    def take_seconds(self) -> dict[str, float]:
        """How long the loads of each request took, since the last call; on a GPU, how long it took to submit them."""
        taken, self._load_s = self._load_s, {}
        return taken

    def close(self) -> None:
        """Let go of all copies."""
        self._blocks.finish()
        for copying in self._copying:
            _let_go(copying.held)
        self._copying.clear()
        self.keep(())

    def _load(self, load: Load) -> HeldPages:
        began = time.perf_counter()
        held = self._held.pop(load.request_id)
        held.load(((piece.copy.node, piece.first, piece.blocks) for piece in load.pieces), self._blocks)
        self._load_s[load.request_id] = time.perf_counter() - began
        return held

    def _let_go(self, request_id: str) -> None:
        held = self._held.pop(request_id, None)
        if held is not None:
            held.let_go()


def _let_go(held: Sequence[HeldPages]) -> None:
    for each in held:
        each.let_go()
