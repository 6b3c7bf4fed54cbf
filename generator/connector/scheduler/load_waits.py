"""How long a request waits for what it loads of its own location's tiers."""

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from generator.connector.step_jobs import Load
from protocol.kv import KvRead


class _Wait(NamedTuple):
    """A request's wait for its load, since ``began``, and what that reads."""

    request_id: str
    began: float
    read: KvRead


class LoadWaits:
    """Times loads in the background, from their beginning until the engine computes their request.

    A load counts if it comes from one tier of this location, and the engine does nothing else meanwhile: a request that
    waits for others, too, says nothing about its load. A page has ``page_tokens`` tokens.
    """

    def __init__(self, page_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._page_tokens = page_tokens
        self._clock = clock
        self._wait: _Wait | None = None

    def begin(self, load: Load, *, alone: bool) -> None:
        """Record that a load begins, ``alone`` in the engine or not. It shares the threads with one that is timed."""
        read = self._read_of(load)
        self._wait = _Wait(load.request_id, self._clock(), read) if alone and read is not None else None

    def drop(self, request_id: str) -> None:
        """Forget a load that has failed, or whose request has ended."""
        if self._wait is not None and self._wait.request_id == request_id:
            self._wait = None

    def computes(self, requests: Collection[str]) -> tuple[str, KvRead] | None:
        """Return the request that has waited for its load, if it is among those of the step that begins.

        If others are, the one that waits would wait for their step, too.
        """
        wait = self._wait
        if wait is None or not requests:
            return None
        self._wait = None
        if wait.request_id not in requests:
            return None
        return wait.request_id, msgspec.structs.replace(wait.read, seconds=self._clock() - wait.began)

    def _read_of(self, load: Load) -> KvRead | None:
        tiers = {piece.copy.tier for piece in load.pieces}
        away = any(piece.source.peer is not None for piece in load.pieces)
        # Composing takes steps of its own.
        if len(tiers) != 1 or away or load.donors or load.composition is not None:
            return None
        pages = sum(len(piece.blocks) for piece in load.pieces)
        return KvRead("", pages * self._page_tokens, 0.0, tier=tiers.pop())
