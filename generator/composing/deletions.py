"""The deletions of documents since a prompt was begun: what it computes may be of one of them."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

IsDeleted: TypeAlias = Callable[[str, tuple[str, ...]], bool]
"""Whether a deletion is of any of these content hashes in a namespace, or of all that the namespace has."""

_REMEMBERED = 64
"""If more come while a prompt is computed, nothing of it is kept."""


class Deletions:
    """Deletions in their order. ``count`` is how many there were, and the last ones are remembered."""

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[IsDeleted] = deque(maxlen=_REMEMBERED)

    def add(self, is_deleted: IsDeleted) -> None:
        """Count a deletion, and remember it."""
        self.count += 1
        self._last.append(is_deleted)

    def since(self, count: int) -> list[IsDeleted] | None:
        """Those behind the first ``count``, or None if not all of them are remembered."""
        later = self.count - count
        return list(self._last)[len(self._last) - later :] if later <= len(self._last) else None
