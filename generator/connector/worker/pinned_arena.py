"""The arena of a worker whose device copies pinned memory faster."""

from collections.abc import Callable
from pathlib import Path

from generator.tiers.arena import HostArena
from generator.tiers.base import Page


class PinnedArena(HostArena):
    """A ``HostArena`` whose memory is pinned while it is attached. ``pin`` returns the function that unpins it."""

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        page_tokens: int,
        page_bytes: int,
        page_count: int,
        pin: Callable[[Page], Callable[[], None]],
    ) -> None:
        super().__init__(path, fingerprint, page_tokens, page_bytes, page_count)
        self._unpin = pin(self._file.pages)

    def close(self) -> None:
        """Unpin the memory, and detach from it."""
        self._unpin()
        self._unpin = _nothing
        super().close()


def _nothing() -> None:
    """Do nothing: the memory is unpinned already."""
