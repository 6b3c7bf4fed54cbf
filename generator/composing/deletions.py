"""The deletions of documents since a prompt was begun: what it computes may be of a deleted one."""

from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
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

    def left_since(self, count: int, namespace: str, contents: Collection[str]) -> Collection[str] | None:
        """What the deletions after the first ``count`` have left of the contents, as ``left_by`` says.

        None, too, if not all of these deletions are remembered.
        """
        passed = len(self._last) - (self.count - count)
        if passed < 0:
            return None
        for is_deleted in islice(self._last, passed, None):
            left = left_by(is_deleted, namespace, contents)
            if left is None:
                return None
            contents = left
        return contents


def left_by(is_deleted: IsDeleted, namespace: str, contents: Collection[str]) -> Collection[str] | None:
    """The contents that a deletion leaves, or None if it leaves nothing.

    A branch that rests on no content, such as a heading, is deleted with all of its namespace.
    """
    if not is_deleted(namespace, tuple(contents)):
        return contents
    return [content for content in contents if not is_deleted(namespace, (content,))] or None
